"""Device tensors behind sampling: inputs of a step per row, and state of a sequence per slot.

Both are allocated once and written in place, so that their addresses may be frozen in a captured
graph. `engine/sampler.py` reads them.

Legend: T rows of the step, V vocabulary, S slots, F fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from engine.request import SamplingParams

_FLOAT_FIELDS = 7
_FIELDS = 10


class SamplingInputs:
    """What changes from step to step: one value per row and field, in one arena.

    The host fills a pinned instance and copies its arena to the device instance in one transfer.

    Attributes:
        arena: int64 [F, T]; the fields below are views of its rows.
        temperature: float64 [T]; 0 is greedy.
        top_p, min_p: float64 [T]; 1 and 0 keep all.
        presence_penalty, frequency_penalty: float64 [T]; 0 is off.
        repetition_penalty: float64 [T]; 1 is off.
        uniform: float64 [T] in [0, 1), see `uniform_for`.
        top_k: int64 [T]; 0 keeps all.
        slot: int64 [T] in 0..S-1; padded rows name a spare slot.
        stop_allowed: int64 [T]; 0 bans the slot's stop ids (`min_tokens`).
    """

    def __init__(self, arena: Tensor) -> None:
        self.arena = arena
        floats = arena[:_FLOAT_FIELDS].view(torch.float64)
        self.temperature, self.top_p, self.min_p = floats[0], floats[1], floats[2]
        self.presence_penalty, self.frequency_penalty = floats[3], floats[4]
        self.repetition_penalty, self.uniform = floats[5], floats[6]
        self.top_k, self.slot, self.stop_allowed = arena[7], arena[8], arena[9]

    @classmethod
    def allocate(
        cls,
        num_rows: int,
        device: torch.device | str = "cpu",
        *,
        spare_slot: int = 0,
        pin_memory: bool = False,
    ) -> SamplingInputs:
        """Return inputs for `num_rows` rows, all greedy on `spare_slot`."""
        arena = torch.zeros(_FIELDS, num_rows, dtype=torch.int64, pin_memory=pin_memory)
        inputs = cls(arena)
        for row in range(num_rows):
            inputs.clear_row(row, spare_slot)
        return inputs if torch.device(device).type == "cpu" else cls(arena.to(device))

    def rows(self, num_rows: int) -> SamplingInputs:
        """Return views of the first `num_rows` rows."""
        return SamplingInputs(self.arena[:, :num_rows])

    def set_row(
        self, row: int, params: SamplingParams, *, slot: int, uniform: float, num_generated: int
    ) -> None:
        """Write one row on the host.

        Args:
            row: index below T.
            params: the request's parameters.
            slot: where the request's counts lie.
            uniform: the draw of this step, in [0, 1).
            num_generated: tokens generated so far, for `min_tokens`.
        """
        self.temperature[row] = params.temperature
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.repetition_penalty[row] = params.repetition_penalty
        self.uniform[row] = uniform
        self.top_k[row] = min(params.top_k, torch.iinfo(torch.int64).max)
        self.slot[row] = slot
        self.stop_allowed[row] = int(num_generated >= params.min_tokens)

    def clear_row(self, row: int, spare_slot: int) -> None:
        """Make one row on the host a padded one: greedy, nothing banned, on the spare slot."""
        self.arena[:, row] = 0
        self.top_p[row] = 1.0
        self.repetition_penalty[row] = 1.0
        self.slot[row] = spare_slot
        self.stop_allowed[row] = 1

    def copy_from(self, host: SamplingInputs) -> None:
        """Copy the arena of `host` here; asynchronous if that one is pinned and this on a GPU."""
        self.arena.copy_(host.arena, non_blocking=True)


class SamplingState:
    """What a sequence carries from token to token, per slot; written in place, never moved.

    Attributes:
        output_counts: int32 [S, V] occurrences of a token in the generated text.
        prompt_mask: bool [S, V] whether a token occurs in the prompt.
        bias: float32 [S, V] added to the logits.
        stop_mask: bool [S, V] ids that end the request, banned until `min_tokens`.
        suppressed: bool [V] ids that no request may generate.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        *,
        suppressed_ids: Iterable[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_slots, vocab_size)
        self.output_counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self.prompt_mask = torch.zeros(shape, dtype=torch.bool, device=device)
        self.bias = torch.zeros(shape, dtype=torch.float32, device=device)
        self.stop_mask = torch.zeros(shape, dtype=torch.bool, device=device)
        suppressed = torch.zeros(vocab_size, dtype=torch.bool)
        suppressed[torch.tensor(list(suppressed_ids), dtype=torch.int64)] = True
        self.suppressed = suppressed.to(device)

    def start(
        self,
        slot: int,
        params: SamplingParams,
        *,
        prompt_ids: Iterable[int],
        stop_ids: Collection[int],
    ) -> None:
        """Prepare a slot for a new request; runs between steps, on the stream of the steps.

        Args:
            slot: the slot, below S.
            params: parameters that passed `check_token_ids`.
            prompt_ids: tokens of the prompt.
            stop_ids: every id that ends this request.
        """
        device = self.bias.device
        for table in (self.output_counts, self.prompt_mask, self.bias, self.stop_mask):
            table[slot].zero_()

        def ids(values: Iterable[int]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.int64, device=device)

        self.prompt_mask[slot].index_fill_(0, ids(prompt_ids), True)
        self.stop_mask[slot].index_fill_(0, ids(stop_ids), True)
        if params.logit_bias:
            values = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
            self.bias[slot].index_copy_(0, ids(params.logit_bias), values.to(device))
