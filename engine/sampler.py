"""Logits to token ids on the device, for a batch of rows with different parameters.

Every function has static shapes, no data-dependent control flow and no host synchronisation, so it
runs eagerly on the CPU and inside a captured CUDA graph alike. Randomness comes in as one number
per row, drawn on the host by a counter-based generator: a draw depends on the request's seed and on
how many tokens it has generated, never on the batch around it.

Logits are changed in this order: repetition penalty, presence and frequency penalties, bias, bans,
temperature; then top-k, min-p and top-p each drop tokens from what the one before has left.

Legend: T rows of the step, V vocabulary, S slots.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.errors import RequestError
from engine.request import SamplingParams
from engine.sampling_state import SamplingInputs, SamplingState
from ops.top_k import exact_top_k


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Check that every token id in `params` exists.

    Raises:
        RequestError: an id of `logit_bias` or `stop_token_ids` is outside the vocabulary.
    """
    for name in ("logit_bias", "stop_token_ids"):
        for token in getattr(params, name):
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"{name}: token {token} is outside the vocabulary (0..{vocab_size - 1})", name
                )


def is_plain_greedy(params: SamplingParams, num_generated: int) -> bool:
    """Whether `sample_greedy` gives this request's next token: greedy, logits unchanged."""
    return (
        params.greedy
        and not params.logit_bias
        and params.presence_penalty == 0
        and params.frequency_penalty == 0
        and params.repetition_penalty == 1
        and num_generated >= params.min_tokens
    )


def uniform_for(seed: int, step: int) -> float:
    """Return the draw of one step: uniform in [0, 1), 53 bits, the same on every platform.

    Philox 4x64 with the seed as key and the step as counter (Salmon et al., "Parallel random
    numbers: as easy as 1, 2, 3", 2011), so any step can be drawn without those before it.

    Args:
        seed: any integer; equal modulo 2^64 is equal.
        step: tokens generated before this one, at least 0.
    """
    generator = np.random.Philox(key=seed % 2**64, counter=step)
    return float(int(generator.random_raw()) >> 11) * 2.0**-53


def adjust_logits(
    logits: Tensor, inputs: SamplingInputs, state: SamplingState
) -> tuple[Tensor, Tensor]:
    """Apply penalties, bias and bans.

    Args:
        logits: float32 [T, V], not written.
        inputs: T rows.
        state: slots that `inputs.slot` names.

    Returns:
        Adjusted logits, float32 [T, V] with -inf for banned ids, and `ok`, bool [T]: False where
        the logits hold NaN or +inf or nothing may be chosen; such a row is all zeros.
    """
    counts = state.output_counts[inputs.slot]
    seen = (counts > 0) | state.prompt_mask[inputs.slot]
    repetition = inputs.repetition_penalty.float()[:, None]
    penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
    # A tiny penalty must not turn a large logit into infinity, which would look like a broken row.
    penalised = penalised.clamp(max=torch.finfo(torch.float32).max)
    adjusted = torch.where(seen & torch.isfinite(logits), penalised, logits)
    adjusted = adjusted - inputs.frequency_penalty.float()[:, None] * counts
    adjusted = adjusted - inputs.presence_penalty.float()[:, None] * (counts > 0)
    adjusted = adjusted + state.bias[inputs.slot]
    held = state.stop_mask[inputs.slot] & (inputs.stop_allowed == 0)[:, None]
    return _ban(adjusted, state.suppressed | held)


def sample(logits: Tensor, inputs: SamplingInputs, state: SamplingState) -> tuple[Tensor, Tensor]:
    """Choose one token per row.

    Greedy rows take the largest adjusted logit, the lowest id among equals. Other rows sort by
    probability (equal ones by id), filter, and invert the cumulative distribution at `uniform`, in
    float64. `state` is only read; see `record_tokens`.

    Args:
        logits: float32 [T, V], not written.
        inputs: T rows.
        state: slots that `inputs.slot` names.

    Returns:
        Token ids, int64 [T], always in 0..V-1, and `ok`, bool [T]: where False the row's logits
        were unusable and its id means nothing.

    Capture: safe; no synchronisation.
    Cost: a stable sort of [T, V] and about ten passes over it in float64.
    """
    adjusted, ok = adjust_logits(logits, inputs, state)
    greedy_ids = adjusted.argmax(dim=-1)
    ordered, ids = adjusted.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.double()
    greedy = inputs.temperature <= 0
    temperature = torch.where(greedy, 1.0, inputs.temperature)[:, None]
    # Weights relative to the most likely token, which has weight 1; no temperature can overflow.
    weights = torch.exp((ordered - ordered[:, :1]) / temperature)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    top_k = inputs.top_k[:, None]
    keep = ((top_k == 0) | (rank < top_k)) & (weights >= inputs.min_p[:, None])
    weights = torch.where(keep, weights, 0.0)
    cumulative = weights.cumsum(dim=-1)
    before = torch.nn.functional.pad(cumulative[:, :-1], (1, 0))
    top_p = inputs.top_p[:, None]
    keep = keep & ((top_p >= 1) | (before < top_p * cumulative[:, -1:]))
    weights = torch.where(keep, weights, 0.0)
    cumulative = weights.cumsum(dim=-1)
    target = inputs.uniform[:, None] * cumulative[:, -1:]
    position = (cumulative <= target).sum(dim=-1)
    # Rounding may leave every sum at or below the target: take the last token with any weight.
    position = torch.minimum(position, (weights > 0).sum(dim=-1) - 1)
    sampled_ids = ids.gather(-1, position[:, None])[:, 0]
    return torch.where(greedy, greedy_ids, sampled_ids), ok


def sample_greedy(logits: Tensor, state: SamplingState) -> tuple[Tensor, Tensor]:
    """Choose the most likely token of each row; for steps in which `is_plain_greedy` holds for all.

    Args:
        logits: float32 [T, V], not written.
        state: only `suppressed` is read.

    Returns:
        Token ids int64 [T] and `ok` bool [T], as `sample` would.

    Capture: safe; no synchronisation.
    """
    adjusted, ok = _ban(logits, state.suppressed)
    return adjusted.argmax(dim=-1), ok


def record_tokens(token_ids: Tensor, inputs: SamplingInputs, state: SamplingState) -> None:
    """Count the tokens that were chosen; writes `state.output_counts` in place.

    Args:
        token_ids: int64 [T] in 0..V-1.
        inputs: T rows; several may name one slot.
        state: slots that `inputs.slot` names.

    Capture: safe; the address of the counts is frozen.
    """
    flat = state.output_counts.view(-1)
    index = inputs.slot * state.output_counts.shape[1] + token_ids
    flat.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32))


def token_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of given and of the most likely tokens, from the raw logits.

    Args:
        logits: float32 [T, V], before any adjustment.
        token_ids: int64 [T].
        num_top: alternatives to report, 0..V.

    Returns:
        float32 [T] of `token_ids`; int64 [T, num_top] ids of the most likely tokens, descending,
        equal ones by id; float32 [T, num_top] theirs. Natural logarithm.

    Capture: safe; no synchronisation.
    """
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = (logits.gather(-1, token_ids[:, None]) - total)[:, 0]
    if num_top == 0:
        return chosen, token_ids.new_empty(len(token_ids), 0), total.new_empty(len(token_ids), 0)
    top_ids = exact_top_k(logits, num_top)
    return chosen, top_ids, logits.gather(-1, top_ids) - total


def _ban(logits: Tensor, banned: Tensor) -> tuple[Tensor, Tensor]:
    """Mask `banned` (bool, [V] or [T, V]) with -inf; return that and `ok`, bad rows zeroed."""
    masked = logits.masked_fill(banned, -torch.inf)
    usable = (logits < torch.inf).all(dim=-1)  # False for NaN as well
    ok = usable & (masked > -torch.inf).any(dim=-1)
    return torch.where(ok[:, None], masked, 0.0), ok
