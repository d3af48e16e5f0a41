"""Inputs of one forward step: tensors with the step's rows, and the static facts of its shape.

Legend: T rows (tokens), S slots (sequences that hold cache), E Engram layers.

A row is one token of one sequence. Rows of a step may belong to several sequences (decode, verify)
or be a piece of one prompt (prefill). Padding rows point at the scratch slot, whose cache nobody
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class StepInputs(NamedTuple):
    """Tensors of one step, all on the model's device."""

    token_ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64, index of the token in its sequence."""
    slots: Tensor
    """[T] int64, cache slot of the sequence; the scratch slot for padding rows."""
    engram: tuple[Tensor, ...]
    """One [T, width] tensor of decoded table rows per Engram layer, compute type."""


@dataclass(frozen=True)
class StepShape:
    """Static facts that a step is compiled for.

    In a prefill step all rows but trailing padding belong to one sequence and have consecutive
    positions. In a decode step any rows may stand together, at most `CacheState.max_step_rows` of
    one sequence, each sequence's rows with ascending consecutive positions.
    """

    prefill: bool
    """Whether this is a prefill step."""
    context_bound: int
    """No row has a position at or beyond this; bounds what the indexer looks at."""
    tile_rows: int = 64
    """Prefill: query rows whose attention is computed at a time."""
