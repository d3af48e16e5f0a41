"""The cache of all sequences as explicit static tensors with a slot dimension.

Legend: S slots in use by sequences plus one scratch slot (the last) for padding rows, R ring rows,
N compressed rows, C head_dim, I index_head_dim, W window.

Everything is addressed by (slot, position), so rolling a sequence back means writing over it:
a row at position p sees only ring rows p-W+1 ... p and compressed rows below (p + 1) / ratio.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.model.precision import Precision
from engine.model_config import DraftConfig, ModelConfig

_CARRY_ROWS = 16


@dataclass
class CacheState:
    """Cache tensors of one model instance; one tensor per layer so that graphs never slice."""

    num_slots: int
    """Slots for sequences; slot number `num_slots` is the scratch slot."""
    max_model_len: int
    """Positions a slot can hold, tokens."""
    max_step_rows: int
    """Most rows of one sequence in a decode step; rings are long enough for them."""
    window: list[Tensor]
    """Per layer [S, R, C]: rotated window keys/values, row = position mod R."""
    latent: dict[int, Tensor]
    """Per KV source layer [S, N, C]: rotated compressed rows."""
    index_key: dict[int, Tensor]
    """Per KV source layer [S, N, I]."""
    carry: dict[int, Tensor]
    """Per source of ratio 2: [S, carry rows, 2, C] float32 values and scores of recent tokens, row
    = position mod carry rows; holds the first token of an incomplete pair, survives rollback."""
    draft_window: list[Tensor]
    """Per draft stage [S, R, C]."""

    @property
    def scratch_slot(self) -> int:
        """Slot that padding rows write to."""
        return self.num_slots

    def num_bytes(self) -> int:
        """Bytes of all cache tensors."""
        tensors = [*self.window, *self.latent.values(), *self.index_key.values()]
        tensors += [*self.carry.values(), *self.draft_window]
        return sum(t.numel() * t.element_size() for t in tensors)

    def clear_slot(self, slot: int) -> None:
        """Zero a slot for a new sequence: masked rows are multiplied by 0 and so must be finite."""
        for group in (self.window, self.latent.values(), self.index_key.values()):
            for tensor in group:
                tensor[slot].zero_()
        for tensor in (*self.carry.values(), *self.draft_window):
            tensor[slot].zero_()


def resolve_max_model_len(model: ModelConfig, config: EngineConfig) -> int:
    """Return the longest sequence in tokens: the setting, or 8192, never above the model's own."""
    return min(config.max_model_len or 8192, model.context_length)


def allocate_state(
    model: ModelConfig,
    draft: DraftConfig | None,
    config: EngineConfig,
    precision: Precision,
    device: torch.device,
) -> CacheState:
    """Allocate the cache, zeroed."""
    slots = config.max_num_seqs + 1
    max_len = resolve_max_model_len(model, config)
    step_rows = max(config.decode_buckets)

    def cache(rows: int, width: int) -> Tensor:
        return torch.zeros(slots, rows, width, dtype=precision.compute, device=device)

    def ring(window: int, width: int) -> Tensor:
        # Writing up to step_rows new rows first must not overwrite what the oldest of them reads.
        return cache(max(2 * window, window + step_rows), width)

    latent, index_key, carry = {}, {}, {}
    for layer in model.kv_source_layers:
        ratio = model.compress_ratios[layer]
        rows = -(-max_len // ratio)
        latent[layer] = cache(rows, model.head_dim)
        index_key[layer] = cache(rows, model.index_head_dim)
        if ratio > 1:
            carry_rows = max(_CARRY_ROWS, 2 * step_rows)
            carry[layer] = torch.zeros(slots, carry_rows, 2, model.head_dim, device=device)
    draft_window = []
    if draft is not None:
        draft_window = [ring(draft.window, draft.head_dim) for _ in range(draft.num_layers)]
    return CacheState(
        num_slots=config.max_num_seqs,
        max_model_len=max_len,
        max_step_rows=step_rows,
        window=[ring(model.window, model.head_dim) for _ in range(model.num_layers)],
        latent=latent,
        index_key=index_key,
        carry=carry,
        draft_window=draft_window,
    )
