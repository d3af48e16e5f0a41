from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.chat import ChatReply, ToolCall, parse_file, render_file

USER = {"role": "user", "content": "q"}


def test_render_vector_and_bare_body(render_vector: dict[str, Any]) -> None:
    assert render_file(render_vector) == render_vector["expected_prompt"]
    if "add_generation_prompt" not in render_vector:
        assert render_file(render_vector["request"]) == render_vector["expected_prompt"]


def test_parse_vector(parse_vector: dict[str, Any], as_vector: Any) -> None:
    got = parse_file(parse_vector)
    calls = tuple(ToolCall("", call["name"], call["arguments"]) for call in got["tool_calls"])
    reply = ChatReply(got["reasoning_content"], got["content"], calls)
    expected = parse_vector["expected"]
    assert as_vector(reply, got["finish_reason"], expected) == expected


def test_parse_defaults_and_namespace() -> None:
    assert parse_file({"model_output": "r</think>a"}) == {
        "reasoning_content": "r",
        "content": "a",
        "tool_calls": [],
        "finish_reason": "stop",
    }
    block = (
        '</think><｜DSML｜ calls><｜DSML｜ invoke name="ns::f"></｜DSML｜ invoke></｜DSML｜ calls>'
    )
    request = {"tools": [{"function": {"name": "g"}}], "tool_choice": "required"}
    assert parse_file({"request": request, "model_output": block})["tool_calls"] == [
        {"name": "f", "arguments": "{}", "namespace": "ns"}
    ]


def test_parse_uses_messages_if_there_are_any() -> None:
    last = {"role": "assistant", "content": "so", "prefix": True}
    data = {"request": {"messages": [USER, last]}, "model_output": "\nfar"}
    assert parse_file(data)["content"] == "\nfar"


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        {"model_output": 1},
        {"model_output": "", "engine_finish": "abort"},
        {"model_output": "", "request": "x"},
        {"model_output": "", "request": {"stop": ""}},
    ],
)
def test_malformed_parse_file(data: Any) -> None:
    with pytest.raises(RequestError):
        parse_file(data)


@pytest.mark.parametrize(
    "data",
    [[], {}, {"request": 1}, {"request": {"messages": [USER]}, "add_generation_prompt": 1}],
)
def test_malformed_render_file(data: Any) -> None:
    with pytest.raises(RequestError):
        render_file(data)
