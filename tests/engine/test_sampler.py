from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.errors import RequestError
from engine.request import SamplingParams
from engine.sampler import (
    adjust_logits,
    check_token_ids,
    is_plain_greedy,
    record_tokens,
    sample,
    sample_greedy,
    token_logprobs,
    uniform_for,
)
from engine.sampling_state import SamplingInputs, SamplingState

INF = math.inf
one_row = partial(SamplingParams, max_tokens=100)
MakeInputs = Callable[..., SamplingInputs]


def test_uniform_depends_on_seed_and_step_only() -> None:
    # Philox is defined by integers alone, so these numbers hold on every platform.
    assert uniform_for(0, 0) == 0.011546754286331562
    assert uniform_for(2**63, 2**40) == 0.1582310970067735
    assert uniform_for(-1, 3) == uniform_for(2**64 - 1, 3) == 0.10224385374061784
    draws = [uniform_for(seed, step) for seed in range(40) for step in range(50)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= u < 1 for u in draws)
    assert abs(float(np.mean(draws)) - 0.5) < 0.03
    assert abs(float(np.corrcoef(draws[:-1], draws[1:])[0, 1])) < 0.08


def test_token_does_not_depend_on_batch_position(make_inputs: MakeInputs) -> None:
    rng = np.random.default_rng(5)
    vocab, rows = 400, 7
    logits = torch.from_numpy(rng.normal(size=(rows, vocab)).astype(np.float32))
    params = [one_row(temperature=0.9, top_p=0.95) for _ in range(rows)]
    uniforms = [uniform_for(row, 3) for row in range(rows)]
    state = SamplingState(rows, vocab)
    together, _ = sample(logits, make_inputs(params, uniforms), state)
    order = [4, 0, 6, 2, 5, 1, 3]
    mixed = make_inputs(params, [uniforms[r] for r in order], order)
    shuffled, _ = sample(logits[order], mixed, state)
    alone = [
        sample(logits[r : r + 1], make_inputs(params[:1], [uniforms[r]], [r]), state)[0].item()
        for r in range(rows)
    ]
    assert together[order].tolist() == shuffled.tolist()
    assert together.tolist() == alone


def test_penalties_by_hand(make_inputs: MakeInputs) -> None:
    state = SamplingState(1, 6)
    params = one_row(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={5: 10.0},
    )
    state.start(0, params, prompt_ids=[0, 1], stop_ids=())
    inputs = make_inputs([params], [0.0])
    for token in (2, 2, 3):
        record_tokens(torch.tensor([token]), inputs, state)
    logits = torch.tensor([[4.0, -4.0, 4.0, -4.0, 4.0, 0.0]])
    adjusted, ok = adjust_logits(logits, inputs, state)
    # prompt: halved or doubled; twice generated: 2 - 2 * 0.25 - 0.5; once: -8 - 0.25 - 0.5
    assert adjusted.tolist() == [[2.0, -8.0, 1.0, -8.75, 4.0, 10.0]]
    assert ok.tolist() == [True]


def test_min_tokens_bans_stop_ids_until_reached(make_inputs: MakeInputs) -> None:
    state = SamplingState(1, 4)
    params = one_row(temperature=0.0, min_tokens=2)
    state.start(0, params, prompt_ids=[], stop_ids={3})
    logits = torch.tensor([[0.0, 1.0, 0.5, 9.0]])
    for generated, expected in ((0, 1), (1, 1), (2, 3)):
        inputs = make_inputs([params], [0.0], num_generated=generated)
        assert sample(logits, inputs, state)[0].item() == expected


def test_record_tokens_counts_rows_of_one_slot(make_inputs: MakeInputs) -> None:
    state = SamplingState(3, 5)
    inputs = make_inputs([one_row()] * 4, [0.0] * 4, slots=[1, 1, 2, 1])
    record_tokens(torch.tensor([4, 4, 4, 0]), inputs, state)
    assert state.output_counts.tolist() == [[0] * 5, [1, 0, 0, 0, 2], [0, 0, 0, 0, 1]]


def test_ties_go_to_the_lowest_id(make_inputs: MakeInputs) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]])
    state = SamplingState(1, 5)
    assert sample_greedy(logits, state)[0].item() == 1
    assert sample(logits, make_inputs([one_row(temperature=0.0)], [0.9]), state)[0].item() == 1
    for uniform, expected in ((0.0, 1), (0.34, 2), (0.99, 3)):
        inputs = make_inputs([one_row(top_k=3)], [uniform])
        assert sample(logits, inputs, state)[0].item() == expected
    for uniform in (0.0, 0.5, 0.99):
        inputs = make_inputs([one_row(top_k=1)], [uniform])
        assert sample(logits, inputs, state)[0].item() == 1


def test_greedy_ignores_the_filters(make_inputs: MakeInputs) -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    params = one_row(temperature=0.0, top_k=5, top_p=0.1, min_p=0.9)
    state = SamplingState(3, 50)
    ids, _ = sample(logits, make_inputs([params] * 3, [0.99] * 3), state)
    assert ids.tolist() == logits.argmax(-1).tolist() == sample_greedy(logits, state)[0].tolist()


@pytest.mark.parametrize("temperature", [1e-38, 1e-5, 1.0, 2.0])
def test_extreme_logits_stay_in_range(make_inputs: MakeInputs, temperature: float) -> None:
    logits = torch.full((4, 8), -1e4)
    logits[0, 3] = 1e4
    logits[1] = torch.tensor([-INF, -INF, 2.0, -INF, -INF, -INF, -INF, -INF])
    logits[2] = 1e4
    logits[3] = torch.tensor([3e38, -3e38, -INF, 0, 0, 0, 0, 0])
    state = SamplingState(4, 8)
    params = one_row(temperature=temperature, repetition_penalty=1e-30)
    for slot in range(4):
        state.start(slot, params, prompt_ids=range(8), stop_ids=())
    state.prompt_mask[2:] = False
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        ids, ok = sample(logits, make_inputs([params] * 4, [uniform] * 4), state)
        assert ok.all()
        assert ids[[0, 1, 3]].tolist() == [3, 2, 0]
        assert ids[2] == int(uniform * 8)


def test_unusable_rows_are_flagged_and_stay_in_range(make_inputs: MakeInputs) -> None:
    logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    logits[1, 4] = math.nan
    logits[2, 9] = INF
    logits[3] = -INF
    logits[4] = -INF
    logits[4, 7] = 1.0  # the only finite one is suppressed below
    state = SamplingState(6, 10, suppressed_ids=[7])
    expected_ok = [True, False, False, False, False, True]
    for temperature in (0.0, 1.0):
        params = [one_row(temperature=temperature)] * 6
        ids, ok = sample(logits, make_inputs(params, [0.999] * 6), state)
        assert ok.tolist() == expected_ok
        assert ((ids >= 0) & (ids < 10)).all()
    ids, ok = sample_greedy(logits, state)
    assert ok.tolist() == expected_ok
    assert ((ids >= 0) & (ids < 10)).all()


def test_suppressed_ids_are_never_chosen(make_inputs: MakeInputs) -> None:
    logits = torch.zeros(1, 4)
    logits[0, 2] = 50.0
    state = SamplingState(1, 4, suppressed_ids=[2])
    params = one_row(logit_bias={2: 100.0})
    state.start(0, params, prompt_ids=[], stop_ids=())
    for step in range(50):
        inputs = make_inputs([params], [uniform_for(1, step)])
        assert sample(logits, inputs, state)[0].item() != 2
    assert sample_greedy(logits, state)[0].item() == 0


def test_token_logprobs_match_float64() -> None:
    rng = np.random.default_rng(9)
    logits = rng.normal(scale=3, size=(5, 300)).astype(np.float32)
    logits[1, 40:60] = 7.5  # ties at the top
    logits[2, :] = -0.0
    logits[2, 5] = 0.0
    logits[3, 100:] = -INF
    chosen = rng.integers(300, size=5)
    got, top_ids, top = token_logprobs(torch.from_numpy(logits), torch.from_numpy(chosen), 20)
    wide = logits.astype(np.float64)
    best = wide.max(-1, keepdims=True)
    expected = wide - best - np.log(np.exp(wide - best).sum(-1, keepdims=True))
    order = np.argsort(-wide, axis=-1, kind="stable")[:, :20]
    np.testing.assert_allclose(got.numpy(), expected[np.arange(5), chosen], rtol=1e-6, atol=1e-5)
    assert top_ids.tolist() == order.tolist()
    np.testing.assert_allclose(
        top.numpy(), np.take_along_axis(expected, order, -1), rtol=1e-6, atol=1e-5
    )
    assert got.dtype == top.dtype == torch.float32 and top_ids.dtype == torch.int64


def test_token_logprobs_without_alternatives() -> None:
    logits = torch.zeros(2, 8)
    chosen, ids, values = token_logprobs(logits, torch.tensor([0, 7]), 0)
    assert ids.shape == values.shape == (2, 0)
    torch.testing.assert_close(chosen, torch.full((2,), -math.log(8)))


def test_no_host_synchronisation() -> None:
    """Under fake tensors a data-dependent branch or a read of a value raises."""
    with FakeTensorMode():
        inputs = SamplingInputs(torch.zeros(10, 3, dtype=torch.int64))
        state = SamplingState.__new__(SamplingState)
        state.output_counts = torch.zeros(4, 32, dtype=torch.int32)
        state.prompt_mask = torch.zeros(4, 32, dtype=torch.bool)
        state.bias = torch.zeros(4, 32)
        state.stop_mask = torch.zeros(4, 32, dtype=torch.bool)
        state.suppressed = torch.zeros(32, dtype=torch.bool)
        logits = torch.zeros(3, 32)
        ids, ok = sample(logits, inputs, state)
        record_tokens(ids, inputs, state)
        greedy_ids, _ = sample_greedy(logits, state)
        chosen, top_ids, top = token_logprobs(logits, ids, 5)
    assert ids.shape == ok.shape == greedy_ids.shape == chosen.shape == (3,)
    assert top_ids.shape == top.shape == (3, 5)


def test_is_plain_greedy() -> None:
    assert is_plain_greedy(one_row(temperature=0.0, top_p=0.5, top_k=7), 0)
    assert not is_plain_greedy(one_row(temperature=0.1), 0)
    assert not is_plain_greedy(one_row(temperature=0.0, min_tokens=3), 2)
    assert is_plain_greedy(one_row(temperature=0.0, min_tokens=3), 3)
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert not is_plain_greedy(one_row(temperature=0.0, **{name: 0.5}), 0)
    assert not is_plain_greedy(one_row(temperature=0.0, logit_bias={1: 1.0}), 0)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("logit_bias", {"logit_bias": {10: 1.0}}),
        ("logit_bias", {"logit_bias": {-1: 1.0}}),
        ("stop_token_ids", {"stop_token_ids": (3, 10)}),
    ],
)
def test_check_token_ids_names_the_field(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"outside the vocabulary \(0\.\.9\)") as caught:
        check_token_ids(one_row(**values), 10)
    assert caught.value.param == name
    check_token_ids(one_row(logit_bias={0: 1.0, 9: 1.0}, stop_token_ids=(9,)), 10)
