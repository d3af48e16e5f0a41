"""Turns scheduled work into model steps and sampled tokens into events.

Legend: T rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.request import PromptEvent, TokenLogprobs, TokensEvent
from engine.runner import ModelRunner, RowGroup
from engine.sampler import (
    is_plain_greedy,
    record_tokens,
    sample,
    sample_greedy,
    token_logprobs,
    uniform_for,
)
from engine.sampling_state import SamplingInputs, SamplingState
from engine.sequence import Sequence, Status

_BAD_LOGITS = "the model's output for this request is not finite"


class StepExecutor:
    """Runs prefill chunks and decode steps of sequences and delivers what they generate.

    Args:
        runner: the model.
        suppressed_ids: ids that are never generated.
        config: settings.
    """

    def __init__(
        self, runner: ModelRunner, suppressed_ids: tuple[int, ...], config: EngineConfig
    ) -> None:
        self.runner = runner
        slots = config.max_num_seqs + 1
        vocab = runner.backbone.config.vocab_size
        cuda = runner.device.type == "cuda"
        rows = runner.buckets.largest
        with torch.inference_mode():
            self.state = SamplingState(
                slots, vocab, suppressed_ids=suppressed_ids, device=runner.device
            )
            self.host_inputs = SamplingInputs.allocate(
                rows, spare_slot=config.max_num_seqs, pin_memory=cuda
            )
            self.inputs = SamplingInputs.allocate(
                rows, runner.device, spare_slot=config.max_num_seqs
            )
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0

    @torch.inference_mode()
    def start(self, sequence: Sequence) -> None:
        """Prepare the slot that a sequence was given."""
        # A slot may hold anything a failed request left; masked rows must still be finite.
        self.runner.state.clear_slot(sequence.slot)
        self.state.start(
            sequence.slot,
            sequence.params,
            prompt_ids=sequence.prompt_ids,
            stop_ids=sequence.stop_ids,
        )

    @torch.inference_mode()
    def prefill(self, sequence: Sequence, start: int, end: int) -> None:
        """Process a piece of a prompt; after the last piece, generate the first token."""
        collapsed, _ = self.runner.prefill(sequence.slot, sequence.token_ids, start, end)
        sequence.num_computed = end
        self.prompt_tokens_total += end - start
        if sequence.wants_prompt_logprobs:
            self._score_prompt(sequence, collapsed, start)
        if end < len(sequence.prompt_ids):
            return
        scores = tuple(sequence.prompt_logprobs) if sequence.wants_prompt_logprobs else None
        sequence.emit(PromptEvent(len(sequence.prompt_ids), 0, scores))
        if sequence.params.max_tokens == 0:
            sequence.finish("length")
            return
        if sequence.status is Status.FINISHED:
            return
        sequence.status = Status.DECODE
        self._sample([sequence], self.runner.logits(collapsed[-1:]))

    @torch.inference_mode()
    def decode(self, batch: list[Sequence]) -> None:
        """Generate one token for every sequence of a batch."""
        groups = [RowGroup(s.slot, s.token_ids, s.num_computed, len(s.token_ids)) for s in batch]
        logits = self.runner.decode(groups)
        for sequence in batch:
            sequence.num_computed = len(sequence.token_ids)
        self._sample(batch, logits)

    def _score_prompt(self, sequence: Sequence, collapsed: Tensor, start: int) -> None:
        """Append log-probabilities of the tokens that follow each row of a chunk."""
        scores = sequence.prompt_logprobs
        if start == 0:
            scores.append(None)
        targets = list(sequence.prompt_ids[start + 1 : start + 1 + collapsed.shape[0]])
        num_top = sequence.params.prompt_logprobs or 0
        for first, logits in self.runner.logits_in_pieces(collapsed):
            part = targets[first : first + logits.shape[0]]
            if part:
                ids = torch.tensor(part, device=logits.device)
                scores.extend(describe_logprobs(logits[: len(part)], ids, num_top))

    def _sample(self, batch: list[Sequence], logits: Tensor) -> None:
        """Choose a token for each row and deliver it; a bad row ends only its own request."""
        if all(is_plain_greedy(s.params, s.num_generated) for s in batch):
            ids, ok = sample_greedy(logits, self.state)
        else:
            host = self.host_inputs.rows(len(batch))
            for row, s in enumerate(batch):
                uniform = uniform_for(s.seed, s.num_generated)
                host.set_row(
                    row, s.params, slot=s.slot, uniform=uniform, num_generated=s.num_generated
                )
            inputs = self.inputs.rows(len(batch))
            inputs.copy_from(host)
            ids, ok = sample(logits, inputs, self.state)
            record_tokens(ids, inputs, self.state)
        scores = self._logprobs(batch, logits, ids)
        chosen, usable = ids.tolist(), ok.tolist()
        for row, sequence in enumerate(batch):
            if not usable[row]:
                sequence.finish("error", _BAD_LOGITS)
                continue
            self.generation_tokens_total += 1
            reason = sequence.append(chosen[row])
            own = scores.get(row)
            sequence.emit(TokensEvent((chosen[row],), None if own is None else (own,)))
            if reason is not None:
                sequence.finish(reason)

    def _logprobs(
        self, batch: list[Sequence], logits: Tensor, ids: Tensor
    ) -> dict[int, TokenLogprobs]:
        rows = [row for row, s in enumerate(batch) if s.params.logprobs is not None]
        if not rows:
            return {}
        index = torch.tensor(rows, device=logits.device)
        num_top = max(batch[row].params.logprobs or 0 for row in rows)
        described = describe_logprobs(logits[index], ids[index], num_top)
        return {
            row: TokenLogprobs(one.logprob, one.top[: batch[row].params.logprobs])
            for row, one in zip(rows, described, strict=True)
        }


def describe_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Return log-probabilities of tokens [T] under logits [T, V] with alternatives, on the host."""
    num_top = min(num_top, logits.shape[-1])
    chosen, top_ids, top = (t.tolist() for t in token_logprobs(logits, token_ids, num_top))
    return [
        TokenLogprobs(score, tuple(zip(ids, values, strict=True)))
        for score, ids, values in zip(chosen, top_ids, top, strict=True)
    ]
