"""Runs steps of the model: places inputs, picks the bucket, returns logits.

Owns the model's weights, cache and graphs; knows slots and token ids, not requests.
Legend: T rows, V vocabulary, D hidden, L tapped layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import InternalError
from engine.model.backbone import Backbone
from engine.model.engram import EngramHasher
from engine.model.inputs import StepInputs, StepShape
from engine.model.load import Progress
from engine.model.precision import Precision
from engine.model.state import CacheState
from graphs.buckets import BucketTable
from graphs.capture import GraphSet
from graphs.compile import compile_step
from memory.engram import EngramTable

_LOGITS_ROWS = 64  # rows of a long chunk whose logits exist at a time


@dataclass(frozen=True)
class RowGroup:
    """Consecutive tokens of one sequence in a decode step."""

    slot: int
    token_ids: Sequence[int]
    """The sequence from position 0, at least `end` long."""
    start: int
    end: int


def decode_step(
    backbone: Backbone, inputs: StepInputs, state: CacheState, shape: StepShape
) -> tuple[Tensor, Tensor]:
    """Return logits [T, V] float32 and taps [T, L * D]; the function that is compiled."""
    collapsed, taps = backbone(inputs, state, shape)
    return backbone.logits(collapsed), taps


class ModelRunner:
    """One model on one device.

    Args:
        backbone: filled with weights.
        state: its cache.
        engram: table and hasher, or None if the model has no n-gram memory.
        config: settings.
        precision: float types.
        device: where everything lies.
    """

    def __init__(
        self,
        backbone: Backbone,
        state: CacheState,
        engram: tuple[EngramTable, EngramHasher] | None,
        config: EngineConfig,
        precision: Precision,
        device: torch.device,
    ) -> None:
        if engram is None and backbone.config.engram is not None:
            raise InternalError("the model has n-gram memory, but no table was opened")
        self.backbone = backbone
        self.state = state
        self.engram = engram
        self.config = config
        self.precision = precision
        self.device = device
        cuda = device.type == "cuda"
        self.compiled = config.compiled_decode == "on" or (
            config.compiled_decode == "auto" and cuda
        )
        captured = cuda and config.cuda_graphs != "off"
        self.buckets = BucketTable(config.decode_buckets)
        rows = self.buckets.largest
        model = backbone.config
        self._arena = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self._host_arena = torch.zeros(3, rows, dtype=torch.int64, pin_memory=cuda)
        self._engram_rows: tuple[Tensor, ...] = ()
        if model.engram is not None:
            self._engram_rows = tuple(
                torch.zeros(rows, model.engram.width, dtype=precision.compute, device=device)
                for _ in model.engram.layers
            )
        self._logits = torch.zeros(rows, model.vocab_size, device=device)
        width = model.hidden_size * len(backbone.tapped_layers)
        self._taps = torch.zeros(rows, width, dtype=precision.residual, device=device)
        self.graphs = GraphSet(self._make_step, self.buckets, device, captured)

    def _make_step(self, bucket: int) -> Callable[[], None]:
        shape = StepShape(prefill=False, context_bound=self.state.max_model_len)
        inputs = StepInputs(
            self._arena[0, :bucket],
            self._arena[1, :bucket],
            self._arena[2, :bucket],
            tuple(rows[:bucket] for rows in self._engram_rows),
        )
        logits, taps = self._logits[:bucket], self._taps[:bucket]
        function = decode_step
        if self.compiled:
            function = compile_step(decode_step, f"decode_step_{bucket}")  # type: ignore[arg-type]

        def step() -> None:
            new_logits, new_taps = function(self.backbone, inputs, self.state, shape)
            logits.copy_(new_logits)
            taps.copy_(new_taps)

        return step

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile and capture every decode bucket, on padding rows."""
        self._arena[2].fill_(self.state.scratch_slot)
        with torch.inference_mode():
            self.graphs.prepare(progress)

    def gather_engram(self, token_ids: Sequence[int], start: int, end: int) -> list[Tensor]:
        """Return decoded table rows of a piece of a sequence: per layer [T, width] float32."""
        if self.engram is None:
            return []
        table, hasher = self.engram
        return [table.gather(rows) for rows in hasher.rows(token_ids, start, end)]

    @torch.inference_mode()
    def prefill(
        self, slot: int, token_ids: Sequence[int], start: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """Process tokens start ... end-1 of a sequence whose earlier tokens are in the cache.

        Args:
            slot: the sequence's slot.
            token_ids: the sequence from position 0.
            start: first position.
            end: position after the last; any chunk length from 1.

        Returns:
            collapsed outputs [T, D] (see `logits`) and taps [T, L * D], on the device.
        """
        ids = torch.tensor(token_ids[start:end], dtype=torch.int64)
        gathered = self.gather_engram(token_ids, start, end)
        inputs = StepInputs(
            ids.to(self.device),
            torch.arange(start, end, device=self.device),
            torch.full((end - start,), slot, dtype=torch.int64, device=self.device),
            tuple(rows.to(self.device, self.precision.compute) for rows in gathered),
        )
        shape = StepShape(prefill=True, context_bound=end, tile_rows=self.config.prefill_tile_rows)
        out: tuple[Tensor, Tensor] = self.backbone(inputs, self.state, shape)
        return out

    @torch.inference_mode()
    def logits(self, collapsed: Tensor) -> Tensor:
        """Return logits [T, V] float32 of collapsed outputs [T, D]; T should be small."""
        return self.backbone.logits(collapsed)

    def logits_in_pieces(self, collapsed: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (first row, logits [T, V]) of a long chunk [.., D], few rows at a time."""
        for first in range(0, collapsed.shape[0], _LOGITS_ROWS):
            yield first, self.logits(collapsed[first : first + _LOGITS_ROWS])

    @torch.inference_mode()
    def decode(self, groups: Sequence[RowGroup]) -> Tensor:
        """Run one decode step.

        Args:
            groups: rows, in order; together at most the largest bucket, one group per sequence.

        Returns:
            logits [T, V] float32 of all rows in order: a view of a static buffer, overwritten by
            the next decode step.
        """
        num_rows = sum(group.end - group.start for group in groups)
        bucket = self.buckets.fit(num_rows)
        host = self._host_arena
        host[2, :bucket] = self.state.scratch_slot
        host[:2, num_rows:bucket] = 0
        row = 0
        pieces: list[list[Tensor]] = [[] for _ in self._engram_rows]
        for group in groups:
            count = group.end - group.start
            part = slice(row, row + count)
            host[0, part] = torch.tensor(group.token_ids[group.start : group.end])
            host[1, part] = torch.arange(group.start, group.end)
            host[2, part] = group.slot
            gathered = self.gather_engram(group.token_ids, group.start, group.end)
            for layer, rows in enumerate(gathered):
                pieces[layer].append(rows)
            row += count
        self._arena[:, :bucket].copy_(host[:, :bucket], non_blocking=False)
        for buffer, parts in zip(self._engram_rows, pieces, strict=True):
            buffer[:num_rows].copy_(torch.cat(parts).to(self.precision.compute))
        self.graphs.run(bucket)
        return self._logits[:num_rows]

    def close(self) -> None:
        """Free the graphs."""
        self.graphs.close()
