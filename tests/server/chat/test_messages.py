from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.chat.messages import Call, read_arguments, read_messages


def one(**fields: Any) -> Any:
    return read_messages([fields])[0]


@pytest.mark.parametrize(
    ("role", "read"), [("developer", "system"), ("function", "tool"), ("system", "system")]
)
def test_roles(role: str, read: str) -> None:
    assert one(role=role, content="x", name="ignored").role == read


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_text_parts_of_every_spelling(kind: str) -> None:
    parts = [{"type": kind, "text": "a"}, "b", {"type": kind, "text": ""}]
    assert one(role="user", content=parts).content == "a\n\nb\n\n"


@pytest.mark.parametrize(
    "kind", ["image_url", "image", "input_image", "input_audio", "video_url", "file"]
)
def test_other_parts_are_named_in_the_error(kind: str) -> None:
    with pytest.raises(RequestError, match=f"'{kind}'; this server is text-only") as error:
        one(role="user", content=[{"type": kind, kind: {}}])
    assert error.value.param == "messages"


@pytest.mark.parametrize("role", ["assistant", "tool"])
@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": []}, {"content": ""}])
def test_content_may_be_missing(role: str, fields: dict[str, Any]) -> None:
    assert one(role=role, **fields).content == ""


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({}, None),
        ({"reasoning_content": None, "reasoning": None}, None),
        ({"reasoning_content": ""}, ""),
        ({"reasoning_content": "r"}, "r"),
        ({"reasoning": "r"}, "r"),
        ({"reasoning_content": "", "reasoning": "r"}, "r"),
        ({"reasoning_content": "r", "reasoning": "other"}, "r"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": "r", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "answer"},
                ]
            },
            "r",
        ),
    ],
)
def test_reasoning_under_any_name(fields: dict[str, Any], reasoning: str | None) -> None:
    message = one(role="assistant", **fields)
    assert message.reasoning == reasoning
    assert message.content == ("answer" if "content" in fields else "")


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (None, {}),
        ("", {}),
        (" \n", {}),
        ("{}", {}),
        ({}, {}),
        ({"a": 1}, {"a": 1}),
        ('{"b": 1, "a": 12345678901234567890123}', {"b": 1, "a": 12345678901234567890123}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("not json", "not json"),
        ("[1]", "[1]"),
        ('"text"', '"text"'),
        ("null", "null"),
        ([1], "[1]"),
        (3, "3"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_in_every_shape(value: Any, arguments: Any) -> None:
    assert read_arguments(value) == arguments


def test_parameters_of_arguments_that_are_no_object() -> None:
    assert list(Call("", "f", "[1]").parameters()) == [("arguments", "[1]")]
    assert list(Call("", "f", {"b": 1, "a": 2}).parameters()) == [("b", 1), ("a", 2)]


def test_calls() -> None:
    message = one(
        role="assistant",
        tool_calls=[
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            {"id": 2, "name": "flat", "arguments": {}},
            {"id": "3", "function": {"name": "g", "namespace": "ns"}},
        ],
    )
    assert message.calls == (
        Call("1", "f", {"a": 1}),
        Call("", "flat", {}),
        Call("3", "ns::g", {}),
    )
    older = one(role="assistant", function_call={"name": "f", "arguments": "{}"})
    assert older.calls == (Call("", "f", {}),)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        {},
        [],
        ["x"],
        [{"content": "x"}],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user"}],
        [{"role": "system", "content": None}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [1]}],
        [{"role": "user", "content": [{"text": "a"}]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
        [{"role": "assistant", "reasoning": 1}],
        [{"role": "assistant", "tool_calls": {}}],
        [{"role": "assistant", "tool_calls": ["f"]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}],
        [{"role": "user", "content": "x", "prefix": True}],
        [{"role": "assistant", "content": "x", "prefix": True}, {"role": "user", "content": "y"}],
    ],
)
def test_malformed(messages: Any) -> None:
    with pytest.raises(RequestError) as error:
        read_messages(messages)
    assert (error.value.param, error.value.status) == ("messages", 400)


def test_a_long_wrong_value_is_not_echoed() -> None:
    with pytest.raises(RequestError) as error:
        one(role="x" * 100_000, content="")
    assert len(str(error.value)) < 300
