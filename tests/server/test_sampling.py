from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.sampling import (
    fit_max_tokens,
    for_choice,
    read_choice_count,
    read_sampling,
    read_stop,
    refuse_overlong_text,
)

LIMITS: Any = {"max_tokens": 9, "logprobs": None}


def test_defaults() -> None:
    params = read_sampling({}, 100, **LIMITS)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.seed, params.stop_token_ids, params.logit_bias) == (None, (), {})
    assert params.max_tokens == 9


def test_all_fields() -> None:
    body = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": -1,
        "frequency_penalty": 2,
        "repetition_penalty": 1.25,
        "seed": 11,
        "logit_bias": {"5": -100, "99": 1.5},
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "min_tokens": 50,
    }
    params = read_sampling(body, 100, max_tokens=9, logprobs=4, prompt_logprobs=2)
    assert params.greedy
    assert (params.top_p, params.top_k, params.min_p) == (0.5, 7, 0.1)
    assert (params.presence_penalty, params.frequency_penalty) == (-1, 2)
    assert (params.repetition_penalty, params.seed) == (1.25, 11)
    assert params.logit_bias == {5: -100, 99: 1.5}
    assert params.stop_token_ids == (3, 4)
    assert params.ignore_eos
    assert params.min_tokens == 9
    assert (params.logprobs, params.prompt_logprobs) == (4, 2)


@pytest.mark.parametrize(("value", "top_k"), [(-1, 0), (0, 0), (None, 0), (3, 3)])
def test_top_k_off(value: int | None, top_k: int) -> None:
    assert read_sampling({"top_k": value}, 100, **LIMITS).top_k == top_k


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1, 0])
def test_any_seed(seed: int) -> None:
    params = read_sampling({"seed": seed}, 100, **LIMITS)
    assert params.seed is not None
    assert 0 <= params.seed < 2**63
    assert len({for_choice(params, i).seed for i in range(8)}) == 8
    assert for_choice(params, 0) == params


def test_choices_without_seed_share_parameters() -> None:
    params = read_sampling({}, 100, **LIMITS)
    assert for_choice(params, 3) is params


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_k": -2},
        {"min_p": 1.5},
        {"presence_penalty": 3},
        {"frequency_penalty": -3},
        {"repetition_penalty": 0},
        {"seed": "x"},
        {"logit_bias": []},
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"100": 1}},
        {"logit_bias": {"²": 1}},
        {"logit_bias": {"9" * 5000: 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"1": 101}},
        {"logit_bias": {"1": "x"}},
        {"logit_bias": {"1": 10**400}},
        {"stop_token_ids": [100]},
        {"stop_token_ids": 5},
        {"ignore_eos": 1},
        {"min_tokens": -1},
    ],
)
def test_complaints_name_the_field(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        read_sampling(body, 100, **LIMITS)
    assert caught.value.param == next(iter(body))


def test_stop() -> None:
    assert read_stop({}) == ()
    assert read_stop({"stop": "a"}) == ("a",)
    assert read_stop({"stop": ["a", "b"]}) == ("a", "b")
    assert read_stop({"stop": []}) == ()
    for bad in ("", [""], [1], 5, {"a": 1}, ["x"] * 17):
        with pytest.raises(RequestError) as caught:
            read_stop({"stop": bad})
        assert caught.value.param == "stop"


def test_choice_count() -> None:
    assert read_choice_count({}) == 1
    assert read_choice_count({"n": 128}) == 128
    for bad in (0, -1, 129, "1", 1.5):
        with pytest.raises(RequestError):
            read_choice_count({"n": bad})


def test_fit_max_tokens() -> None:
    def fit(asked: int | None, num_prompt: int) -> int:
        return fit_max_tokens(asked, 16, num_prompt, 100, param="prompt")

    assert fit(None, 10) == 16
    assert fit(None, 90) == 10
    assert fit(50, 10) == 50
    assert fit(10**9, 10) == 90
    assert fit(1, 99) == 1
    assert fit(0, 100) == 0
    for asked, num_prompt, total in (
        (None, 100, 101),
        (50, 120, 170),
        (1, 100, 101),
        (0, 101, 101),
    ):
        with pytest.raises(RequestError, match=f"requested {total} tokens") as caught:
            fit(asked, num_prompt)
        assert caught.value.code == "context_length_exceeded"


def test_refuse_overlong_text() -> None:
    refuse_overlong_text(500, 5, 100, param="prompt")
    with pytest.raises(RequestError, match=r"context length is 100 tokens.*101 tokens") as caught:
        refuse_overlong_text(501, 5, 100, param="prompt")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
