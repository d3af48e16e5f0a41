from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.chat import render, stop_strings, validate_request


def test_vector(error_vector: dict[str, Any]) -> None:
    def check() -> None:
        validate_request(error_vector["request"])
        render(error_vector["request"])

    if error_vector["status"] == 200:
        check()
        return
    with pytest.raises(RequestError) as error:
        check()
    assert error.value.status == error_vector["status"]
    assert error.value.param == error_vector["param"]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 2, 0.5, None], [-0.1, 2.1, "1", True, float("nan"), 10**400]),
        ("top_p", [1, 0.01, None], [0, 1.01, "1", False]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("presence_penalty", [-2, 2], [-2.1, 2.1]),
        ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
        ("repetition_penalty", [0.1, 3], [0, -1, float("inf")]),
        ("max_tokens", [1, 10**30], [0, -1, 1.0, "1", True]),
        ("max_completion_tokens", [1], [0]),
        ("n", [1, 3], [0, 1.5]),
        ("top_k", [-1, 0, 40], [-2, 0.5]),
        ("min_tokens", [0], [-1]),
        ("seed", [-1, 0, 2**63 - 1], [2**65, "x", 1.5]),
        ("stop", ["a", ["a", "b"], [], None], ["", ["a", ""], [1], {"a": 1}, ["x"] * 17]),
        ("stop_token_ids", [[], [1, 2]], [1, [-1], ["1"], [True]]),
        ("logit_bias", [{}, {"1": -100, "2": 100}], [[], {"x": 1}, {"1": 101}, {"-1": 0}]),
        ("stream", [True, False], [1, "true"]),
        ("ignore_eos", [True], ["yes"]),
        ("logprobs", [True, False], [1]),
        ("modalities", [["text"], None], [["text", "audio"], "text"]),
        ("audio", [None], [{"voice": "x"}]),
        ("web_search_options", [None], [{}]),
    ],
)
def test_field(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        validate_request({name: value})
    for value in bad:
        with pytest.raises(RequestError) as error:
            validate_request({name: value})
        assert error.value.param == name, value


def test_fields_that_need_another() -> None:
    validate_request({"logprobs": True, "top_logprobs": 20})
    validate_request({"stream": True, "stream_options": {"include_usage": True, "x": 1}})
    for body in (
        {"stream": True, "stream_options": {"include_usage": 1}},
        {"stream": True, "stream_options": []},
        {"stream_options": {}},
    ):
        with pytest.raises(RequestError) as error:
            validate_request(body)
        assert error.value.param == "stream_options"


def test_unknown_fields_are_ignored() -> None:
    validate_request({"user": "x", "store": True, "metadata": {}, "anything": object()})


def test_stop_strings() -> None:
    assert stop_strings({}) == ()
    assert stop_strings({"stop": "a"}) == ("a",)
    assert stop_strings({"stop": ["a", "b"]}) == ("a", "b")


def test_the_body_must_be_an_object() -> None:
    with pytest.raises(RequestError):
        validate_request([])  # type: ignore[arg-type]
