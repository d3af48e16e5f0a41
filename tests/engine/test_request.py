from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from engine.errors import RequestError
from engine.request import MAX_LOGPROBS, SamplingParams


def test_defaults_change_nothing() -> None:
    params = SamplingParams(max_tokens=1)
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert params.presence_penalty == params.frequency_penalty == 0.0
    assert params.repetition_penalty == 1.0
    assert not params.logit_bias and not params.stop_token_ids
    assert params.seed is None and params.logprobs is None and params.prompt_logprobs is None


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("temperature", [-0.1, 2.1, math.nan, math.inf], [0.0, 2.0]),
        ("top_p", [0.0, -0.5, 1.01, math.nan], [1e-9, 1.0]),
        ("min_p", [-0.1, 1.1, math.nan], [0.0, 1.0]),
        ("presence_penalty", [-2.1, 2.1, math.nan], [-2.0, 2.0]),
        ("frequency_penalty", [-2.1, 2.1, -math.inf], [-2.0, 2.0]),
        ("repetition_penalty", [0.0, -1.0, math.inf, math.nan], [0.01, 10.0]),
        ("logprobs", [-1, MAX_LOGPROBS + 1], [None, 0, MAX_LOGPROBS]),
        ("prompt_logprobs", [-1, MAX_LOGPROBS + 1], [None, 0, MAX_LOGPROBS]),
        ("top_k", [-1], [0, 1, 10**9]),
        ("max_tokens", [0, -5], [1]),
        ("min_tokens", [-1], [0, 5]),
        ("logit_bias", [{1: 101.0}, {1: 0.0, 2: -100.5}, {3: math.nan}], [{1: -100, 2: 100}]),
    ],
)
def test_limits(name: str, bad: list[Any], good: list[Any]) -> None:
    for value in bad:
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{"max_tokens": 8, name: value})
        assert caught.value.param == name and name in str(caught.value)
        assert caught.value.status == 400
    for value in good:
        params = SamplingParams(**{"max_tokens": 8, name: value})
        assert getattr(params, name) == value


def test_no_tokens_only_to_score_a_prompt() -> None:
    assert SamplingParams(max_tokens=0, prompt_logprobs=0).max_tokens == 0
    with pytest.raises(RequestError):
        SamplingParams(max_tokens=-1, prompt_logprobs=0)


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams(max_tokens=1, temperature=0.0).greedy
    assert not SamplingParams(max_tokens=1, temperature=1e-6).greedy


def test_bias_error_names_the_token() -> None:
    with pytest.raises(RequestError, match="token 17"):
        SamplingParams(max_tokens=1, logit_bias={5: 1.0, 17: 1000.0})


def test_params_are_frozen() -> None:
    params = SamplingParams(max_tokens=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.0  # type: ignore[misc]
    assert dataclasses.replace(params, temperature=0.0).greedy
