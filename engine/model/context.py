"""What all layers of one step share: rotation tables, visibility, and how rows meet the cache.

Legend: T rows, W window, R ring rows, P rotated pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.inputs import StepInputs, StepShape
from ops.rope import rope_table

Probe = Callable[[str, int, Tensor], None]
"""Called as probe(name, layer, value) at points inside the forward pass; for tests, debugging."""


@dataclass
class StepContext:
    """Values derived once per step. Tensors [T] or [T, ...] on the model's device."""

    inputs: StepInputs
    shape: StepShape
    scratch_slot: int
    window_rope: tuple[Tensor, Tensor]
    """cos, sin [T, P] of layers without compression."""
    compress_rope: tuple[Tensor, Tensor]
    """cos, sin [T, P] of layers with compression, at the token's position."""
    pair_rope: tuple[Tensor, Tensor]
    """cos, sin [T, P] of the first position of the token's pair (ratio 2)."""
    probe: Probe | None = None
    selected: Tensor | None = None
    """[T, K] int64 rows chosen by the latest index source, -1 unused; set as layers run."""
    candidates: Tensor | None = None
    """[T, N] bool rows that later index sources may choose from; set by the candidate source."""

    @property
    def positions(self) -> Tensor:
        """Positions [T] int64."""
        return self.inputs.positions

    @property
    def slots(self) -> Tensor:
        """Slots [T] int64."""
        return self.inputs.slots

    def rope(self, ratio: int) -> tuple[Tensor, Tensor]:
        """Return cos, sin [T, P] of a layer with this compression ratio."""
        return self.compress_rope if ratio else self.window_rope

    def num_visible(self, ratio: int) -> Tensor:
        """Return how many compressed rows each query may use, [T] int64."""
        return torch.div(self.positions + 1, ratio, rounding_mode="floor")

    def report(self, name: str, layer: int, value: Tensor) -> None:
        """Hand a value to the probe, if there is one."""
        if self.probe is not None:
            self.probe(name, layer, value)


def make_context(
    inputs: StepInputs,
    shape: StepShape,
    scratch_slot: int,
    window_frequencies: Tensor,
    compress_frequencies: Tensor,
    probe: Probe | None = None,
) -> StepContext:
    """Derive a step's shared values.

    Args:
        inputs: T rows.
        shape: static facts.
        scratch_slot: slot of padding rows.
        window_frequencies, compress_frequencies: inverse frequencies [P] float32.
        probe: sees inner values, or None.
    """
    positions = inputs.positions
    pair_start = torch.div(positions, 2, rounding_mode="floor") * 2
    return StepContext(
        inputs=inputs,
        shape=shape,
        scratch_slot=scratch_slot,
        window_rope=rope_table(positions, window_frequencies),
        compress_rope=rope_table(positions, compress_frequencies),
        pair_rope=rope_table(pair_start, compress_frequencies),
        probe=probe,
    )


def write_rows(cache: Tensor, slots: Tensor, rows: Tensor, values: Tensor) -> None:
    """Store values [T, ...] at cache[slots, rows], in place."""
    cache.index_put_((slots, rows), values.to(cache.dtype))


def write_ring(ring: Tensor, ctx: StepContext, values: Tensor) -> None:
    """Store values [T, ...] at row position mod R of each row's slot.

    Of a prefill chunk longer than the ring only the last R rows are kept; the others go to the
    scratch slot, so that no ring row is written twice.
    """
    size = ring.shape[1]
    slots = ctx.slots
    if ctx.shape.prefill:
        num_valid = (slots != ctx.scratch_slot).sum()
        index = torch.arange(slots.shape[0], device=slots.device)
        slots = torch.where(index >= num_valid - size, slots, ctx.scratch_slot)
    write_rows(ring, slots, ctx.positions % size, values)


def decode_window(
    ring: Tensor, slots: Tensor, positions: Tensor, window: int
) -> tuple[Tensor, Tensor]:
    """Read the window of each row: entries [T, W, C] and mask [T, W], newest first."""
    seen = positions.unsqueeze(-1) - torch.arange(window, device=positions.device)
    return ring[slots.unsqueeze(-1), seen % ring.shape[1]], seen >= 0


def previous_window(ring: Tensor, ctx: StepContext, window: int) -> Tensor:
    """Read the W - 1 entries before a prefill chunk's first row, oldest first: [W - 1, C].

    Entries before position 0 hold whatever the ring holds; the caller's mask hides them.
    """
    first = ctx.positions[:1]
    seen = first - (window - 1) + torch.arange(window - 1, device=first.device)
    return ring[ctx.slots[:1], seen % ring.shape[1]]
