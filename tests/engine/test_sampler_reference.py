from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from engine.request import SamplingParams
from engine.sampler import (
    adjust_logits,
    sample,
    uniform_for,
)
from engine.sampling_state import SamplingInputs, SamplingState

INF = math.inf
one_row = partial(SamplingParams, max_tokens=100)
MakeInputs = Callable[..., SamplingInputs]


def reference_adjusted(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    banned: set[int],
) -> list[float]:
    """Adjusted logits of one row in float64, one token at a time."""
    adjusted = []
    for token, raw in enumerate(logits.tolist()):
        value = raw
        if token in prompt or token in output:
            value = (
                value / params.repetition_penalty
                if value > 0
                else value * params.repetition_penalty
            )
        value -= params.frequency_penalty * output.count(token)
        if token in output:
            value -= params.presence_penalty
        value += params.logit_bias.get(token, 0.0)
        adjusted.append(-INF if token in banned else value)
    return adjusted


def reference_distribution(
    adjusted: list[float], params: SamplingParams
) -> list[tuple[int, float]]:
    """(token, probability) of the tokens that survive every filter, most likely first."""
    order = sorted(range(len(adjusted)), key=lambda t: (-adjusted[t], t))
    if params.temperature == 0:
        return [(order[0], 1.0)]
    if params.top_k:
        order = order[: params.top_k]
    best = adjusted[order[0]]
    weights = [(t, math.exp((adjusted[t] - best) / params.temperature)) for t in order]
    weights = [(t, w) for t, w in weights if w >= params.min_p]
    total = sum(w for _, w in weights)
    kept, reached = [], 0.0
    for token, weight in weights:
        if params.top_p < 1 and reached >= params.top_p * total:
            break
        kept.append((token, weight))
        reached += weight
    total = sum(w for _, w in kept)
    return [(t, w / total) for t, w in kept]


def reference_draw(distribution: list[tuple[int, float]], uniform: float) -> int:
    reached = 0.0
    for token, probability in distribution:
        reached += probability
        if reached > uniform:
            return token
    return distribution[-1][0]


def random_params(rng: np.random.Generator, vocab: int) -> SamplingParams:
    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    return one_row(
        temperature=pick(0.0, 0.3, 1.0, 1.7),
        top_k=int(pick(0, 0, 1, 3, vocab, 10 * vocab)),
        top_p=pick(1.0, 1.0, 0.9, 0.5, 1e-6),
        min_p=pick(0.0, 0.0, 0.02, 0.4, 1.0),
        presence_penalty=pick(0.0, 0.7, -1.3),
        frequency_penalty=pick(0.0, 0.4, -0.6),
        repetition_penalty=pick(1.0, 1.3, 0.8),
        logit_bias={int(rng.integers(vocab)): b for b in pick((), (5.0, -100.0, 0.5))},
        min_tokens=int(pick(0, 50)),
    )


@pytest.mark.parametrize("seed", range(12))
def test_batch_equals_slow_reference_per_row(make_inputs: MakeInputs, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, vocab = 16, int(rng.choice([5, 33, 260]))
    suppressed = {int(rng.integers(vocab))}
    state = SamplingState(rows + 2, vocab, suppressed_ids=suppressed)
    slots = [int(s) for s in rng.permutation(rows + 2)[:rows]]
    params = [random_params(rng, vocab) for _ in range(rows)]
    logits = rng.normal(scale=3, size=(rows, vocab)).astype(np.float32)
    uniforms = [float(u) for u in rng.random(rows)]
    inputs = make_inputs(params, uniforms, slots, num_generated=20)
    expected, distributions = [], []
    for row in range(rows):
        prompt = [int(t) for t in rng.integers(vocab, size=4)]
        output = [int(t) for t in rng.integers(vocab, size=6)]
        stop_ids = {int(t) for t in rng.integers(vocab, size=2)}
        state.start(slots[row], params[row], prompt_ids=prompt, stop_ids=stop_ids)
        for token in output:
            state.output_counts[slots[row], token] += 1
        held = stop_ids if params[row].min_tokens > 20 else set()
        adjusted = reference_adjusted(logits[row], params[row], prompt, output, suppressed | held)
        distributions.append(reference_distribution(adjusted, params[row]))
        expected.append(reference_draw(distributions[-1], uniforms[row]))
        got, _ = adjust_logits(
            torch.from_numpy(logits[row : row + 1]), inputs_row(inputs, row), state
        )
        np.testing.assert_allclose(got[0].numpy(), adjusted, rtol=1e-5, atol=1e-5)
    before = logits.copy()
    ids, ok = sample(torch.from_numpy(logits), inputs, state)
    assert ids.dtype == torch.int64 and ok.all()
    assert ids.tolist() == expected
    assert np.array_equal(logits, before)
    # The lowest draw gives the most likely token, the highest one that has survived the filters.
    inputs.uniform.fill_(0.0)
    ids, _ = sample(torch.from_numpy(logits), inputs, state)
    assert ids.tolist() == [distribution[0][0] for distribution in distributions]
    inputs.uniform.fill_(1 - 2.0**-53)
    ids, _ = sample(torch.from_numpy(logits), inputs, state)
    for token, distribution in zip(ids.tolist(), distributions, strict=True):
        assert dict(distribution).get(token, 0.0) > 0


def inputs_row(inputs: SamplingInputs, row: int) -> SamplingInputs:
    return SamplingInputs(inputs.arena[:, row : row + 1])


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.7},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 0.7, "min_p": 0.05},
        {"temperature": 1.0, "top_p": 0.9, "min_p": 0.02, "top_k": 9},
    ],
)
def test_frequencies_match_probabilities(values: dict[str, Any]) -> None:
    draws, vocab = 20_000, 16
    rng = np.random.default_rng(sum(map(ord, repr(values))))
    logits = rng.normal(scale=1.2, size=vocab).astype(np.float32)
    params = one_row(**values)
    inputs = SamplingInputs.allocate(draws)
    inputs.set_row(0, params, slot=0, uniform=0.0, num_generated=0)
    inputs.arena[:] = inputs.arena[:, :1].clone()
    inputs.uniform.copy_(torch.tensor([uniform_for(11, step) for step in range(draws)]))
    state = SamplingState(1, vocab)
    ids, ok = sample(torch.from_numpy(logits).expand(draws, vocab), inputs, state)
    assert ok.all()
    observed = np.bincount(ids.numpy(), minlength=vocab)
    distribution = dict(reference_distribution(logits.tolist(), params))
    assert set(np.flatnonzero(observed)) <= set(distribution)
    chi_square = sum((observed[t] - draws * p) ** 2 / (draws * p) for t, p in distribution.items())
    # Upper 1e-4 point of chi-square by Wilson and Hilferty's cube-root approximation.
    freedom = len(distribution) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square < limit


def test_full_vocabulary_row(make_inputs: MakeInputs) -> None:
    vocab = 129_280
    rng = np.random.default_rng(8)
    logits = rng.normal(scale=4, size=(1, vocab)).astype(np.float32)
    params = one_row(temperature=1.3, top_p=0.97)
    state = SamplingState(1, vocab)
    distribution = reference_distribution(logits[0].tolist(), params)
    for uniform in (0.0, 0.2, 0.7, 0.9999, 1 - 2.0**-53):
        ids, ok = sample(torch.from_numpy(logits), make_inputs([params], [uniform]), state)
        assert ok.all() and ids.item() == reference_draw(distribution, uniform)
