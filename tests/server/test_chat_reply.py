from __future__ import annotations

import pytest

from server.chat import (
    ChatReply,
    ContentDelta,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)
from server.chat_reply import (
    chunk_choice,
    delta_json,
    merge_deltas,
    message_choice,
    role_delta,
    without_fence,
)

OPTIONS = {"thinking": True, "strip_fence": False, "logprobs": None}


def test_deltas() -> None:
    assert delta_json(ReasoningDelta("r")) == {"reasoning_content": "r", "reasoning": "r"}
    assert delta_json(ContentDelta("c")) == {"content": "c"}
    function = {"name": "f", "arguments": ""}
    call = {"index": 1, "id": "i", "type": "function", "function": function}
    assert delta_json(ToolCallStart(1, "i", "f")) == {"tool_calls": [call]}
    spaced = {"tool_calls": [{**call, "namespace": "ns"}]}
    assert delta_json(ToolCallStart(1, "i", "f", "ns")) == spaced
    piece = {"index": 1, "function": {"arguments": "{"}}
    assert delta_json(ToolCallArguments(1, "{")) == {"tool_calls": [piece]}


def test_role_delta_mentions_reasoning_only_when_thinking() -> None:
    assert role_delta(True) == {"role": "assistant", "content": "", "reasoning_content": ""}
    assert role_delta(False) == {"role": "assistant", "content": ""}


def test_merging_keeps_order_and_text() -> None:
    start = ToolCallStart(0, "i", "f")
    other = ToolCallStart(1, "j", "g")
    deltas = [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        ContentDelta("c"),
        ContentDelta("d"),
        start,
        ToolCallArguments(0, "{"),
        ToolCallArguments(0, "}"),
        other,
        ToolCallArguments(1, "{}"),
    ]
    assert merge_deltas(deltas) == [
        ReasoningDelta("ab"),
        ContentDelta("cd"),
        start,
        ToolCallArguments(0, "{}"),
        other,
        ToolCallArguments(1, "{}"),
    ]
    neighbours = [ToolCallArguments(0, "x"), ToolCallArguments(1, "y")]
    assert merge_deltas(neighbours) == neighbours


def test_message_content() -> None:
    call = ToolCall("i", "f", "{}")

    def message(reply: ChatReply) -> dict[str, object]:
        choice = message_choice(2, reply, "stop", **OPTIONS)  # type: ignore[arg-type]
        assert choice["index"] == 2
        assert choice["finish_reason"] == "stop"
        made: dict[str, object] = choice["message"]
        return made

    assert message(ChatReply("", "", ()))["content"] == ""
    assert "tool_calls" not in message(ChatReply("", "x", ()))
    assert message(ChatReply("", "", (call,)))["content"] is None
    both = message(ChatReply("r", "x", (call,)))
    assert both["content"] == "x"
    assert both["reasoning"] == both["reasoning_content"] == "r"
    assert len(both["tool_calls"]) == 1  # type: ignore[arg-type]


def test_chunk_logprobs() -> None:
    assert chunk_choice(0, {"content": "a"})["logprobs"] is None
    entries = [{"token": "a"}]
    assert chunk_choice(0, {}, "stop", entries)["logprobs"] == {"content": entries, "refusal": None}


@pytest.mark.parametrize(
    ("content", "stripped"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("```\n[1]\n```\n", "[1]"),
        ('  ```json\n{\n"a": 1\n}\n  ```  ', '{\n"a": 1\n}'),
        ('{"a": 1}', '{"a": 1}'),
        ("see ```json\n1\n```", "see ```json\n1\n```"),
        ("```\na\n``` and ```\nb\n```", "```\na\n``` and ```\nb\n```"),
        ("```json\n1", "```json\n1"),
        ("", ""),
    ],
)
def test_fence(content: str, stripped: str) -> None:
    assert without_fence(content) == stripped
