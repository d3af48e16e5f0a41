from __future__ import annotations

import random
from typing import Any

import pytest

from engine.errors import RequestError
from server.chat import render

USER = {"role": "user", "content": "q"}
OFF = {"thinking": {"type": "disabled"}}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
HEAD = "<｜begin▁of▁sentence｜>"
EFFORT = (
    "<｜System｜>Reasoning Effort: 75 "
    "(range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)


def text(messages: list[dict[str, Any]], **fields: Any) -> str:
    return render({"messages": messages, **fields}).text


def call(call_id: str, name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_vector(render_vector: dict[str, Any]) -> None:
    prompt = render(
        render_vector["request"], add_generation_prompt=render_vector.get("add_generation_prompt")
    )
    assert prompt.text == render_vector["expected_prompt"]
    if "special_ranges" in render_vector:
        ranges, position = [], 0
        for piece, special in prompt.spans:
            if special:
                ranges.append([position, position + len(piece)])
            position += len(piece)
        assert ranges == render_vector["special_ranges"]


def test_quoted_markers_are_never_special() -> None:
    rng = random.Random(7)
    markers = ["<｜User｜>", "</think>", "<think>", "｜DSML｜", "<｜end▁of▁sentence｜>", HEAD]
    quote = "".join(rng.choice(markers) for _ in range(20))
    messages = [
        {"role": "system", "content": quote},
        {"role": "latest_reminder", "content": quote},
        {"role": "user", "content": [{"type": "text", "text": quote}]},
        {
            "role": "assistant",
            "content": quote,
            "reasoning_content": quote,
            "tool_calls": [call("1", quote, {quote: quote, "n": [quote]})],
        },
        {"role": "tool", "tool_call_id": "1", "content": quote},
    ]
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "description": quote, "parameters": {quote: quote}},
        }
    ]
    schema = {"type": "json_schema", "json_schema": {"schema": {"title": quote}}}
    plain = render({"messages": messages, "tools": tools, "response_format": schema})
    clean = render(
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "latest_reminder", "content": "s"},
                {"role": "user", "content": "s"},
                {
                    "role": "assistant",
                    "content": "s",
                    "reasoning_content": "s",
                    "tool_calls": [call("1", "s", {"s": "s", "n": ["s"]})],
                },
                {"role": "tool", "tool_call_id": "1", "content": "s"},
            ],
            "tools": TOOLS[:1],
            "response_format": {"type": "json_object"},
        }
    )
    specials = [[piece for piece, special in prompt.spans if special] for prompt in (plain, clean)]
    assert specials[0] == specials[1]
    assert plain.text.count(quote) == 14


def test_reasoning_after_the_last_user_message_is_kept_without_tools() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "a", "reasoning": "old"},
        USER,
        {"role": "assistant", "content": "", "reasoning": "new", "tool_calls": [call("1")]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    assert text(messages) == (
        f"{HEAD}{EFFORT}<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜>q<｜Assistant｜>"
        "<think>new</think>\n\n<｜DSML｜ calls>\n"
        '<｜DSML｜ invoke name="f">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>'
        "<｜User｜><tool_result>r</tool_result><｜Assistant｜><think>"
    )


def test_results_keep_the_places_of_results_around_user_text() -> None:
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call("1"), call("2"), call("3")]},
        {"role": "tool", "tool_call_id": "3", "content": "C"},
        {"role": "user", "content": "between"},
        {"role": "tool", "tool_call_id": "unknown", "content": "U"},
        {"role": "tool", "tool_call_id": "1", "content": "A"},
    ]
    turn = text(messages, **OFF).rpartition("<｜User｜>")[2]
    assert turn == (
        "<tool_result>U</tool_result>\n\nbetween\n\n<tool_result>A</tool_result>\n\n"
        "<tool_result>C</tool_result><｜Assistant｜></think>"
    )


def test_first_message_may_be_of_the_assistant() -> None:
    messages = [{"role": "assistant", "content": "hi"}, USER]
    assert text(messages, **OFF) == (
        f"{HEAD}<｜Assistant｜></think>hi<｜end▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>"
    )


def test_a_final_assistant_message_opens_a_new_turn() -> None:
    messages = [USER, {"role": "assistant", "content": "a"}]
    assert text(messages, **OFF).endswith("</think>a<｜end▁of▁sentence｜><｜Assistant｜></think>")


@pytest.mark.parametrize(
    ("message", "fields", "ending", "start", "continuation"),
    [
        ({"content": "c"}, {}, "<think></think>c", "answer", True),
        ({"content": "c", "reasoning_content": "r"}, {}, "<think>r</think>c", "answer", True),
        ({"content": "", "reasoning_content": "r"}, {}, "<think>r", "reasoning", True),
        ({"content": ""}, {}, "<think>", "reasoning", False),
        ({"content": "c", "reasoning_content": "r"}, OFF, "</think>c", "answer", True),
        ({"content": ""}, OFF, "</think>", "answer", False),
    ],
)
@pytest.mark.parametrize("how", ["prefix", "continue_final_message"])
def test_continuation(
    message: dict[str, Any],
    fields: dict[str, Any],
    ending: str,
    start: str,
    continuation: bool,
    how: str,
) -> None:
    last = {"role": "assistant", **message}
    if how == "prefix":
        last["prefix"] = True
    else:
        fields = {**fields, how: True}
    prompt = render({"messages": [USER, last], **fields})
    assert prompt.text.endswith(f"<｜User｜>q<｜Assistant｜>{ending}")
    assert (prompt.setup.start, prompt.setup.continuation) == (start, continuation)


def test_continuation_needs_an_assistant_message_without_calls() -> None:
    with pytest.raises(RequestError) as error:
        text([USER], continue_final_message=True)
    assert error.value.param == "continue_final_message"
    with pytest.raises(RequestError) as error:
        text([USER, {"role": "assistant", "prefix": True, "tool_calls": [call("1")]}])
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    ("choice", "ending", "start", "shown"),
    [
        ("auto", "</think>", "answer", ["f", "g"]),
        ("required", "</think>\n\n<｜DSML｜ calls>\n", "calls", ["f", "g"]),
        (
            {"type": "function", "function": {"name": "g"}},
            '</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="g">\n',
            "call",
            ["g"],
        ),
        ("none", "</think>", "answer", []),
    ],
)
def test_tool_choice_without_thinking(
    choice: Any, ending: str, start: str, shown: list[str]
) -> None:
    prompt = render({"messages": [USER], "tools": TOOLS, "tool_choice": choice, **OFF})
    assert prompt.text.endswith(f"<｜User｜>q<｜Assistant｜>{ending}")
    assert prompt.setup.start == start
    assert [tool.name for tool in prompt.tools] == shown
    # The opened block consists of the marker's own token and plain text.
    assert (len(prompt.spans) > 4 and prompt.spans[-2] == ("｜DSML｜", True)) == (
        start[:4] == "call"
    )


def test_tool_choice_with_thinking_is_left_to_the_parser() -> None:
    prompt = render({"messages": [USER], "tools": TOOLS, "tool_choice": "required"})
    assert prompt.text.endswith("<｜Assistant｜><think>")
    assert prompt.setup.must_call and prompt.setup.start == "reasoning"


def test_argument_values_keep_order_and_digits() -> None:
    arguments = (
        '{"z": 123456789012345678901234567890, "a": "x", "f": 1e22, "o": {"b": 1, "a": "é"}}'
    )
    messages = [USER, {"role": "assistant", "tool_calls": [call("1", "f", arguments)]}]
    written = [
        ("z", "false", "123456789012345678901234567890"),
        ("a", "true", "x"),
        ("f", "false", "1e+22"),
        ("o", "false", '{"b": 1, "a": "é"}'),
    ]
    lines = [
        f'<｜DSML｜ parameter name="{name}" string="{is_text}">{value}</｜DSML｜ parameter>\n'
        for name, is_text, value in written
    ]
    assert "".join(lines) in text(messages, **OFF)


def test_no_generation_prompt_on_request() -> None:
    assert text([USER], add_generation_prompt=False, **OFF) == f"{HEAD}<｜User｜>q"
    prompt = render({"messages": [USER], **OFF}, add_generation_prompt=False)
    assert prompt.text == f"{HEAD}<｜User｜>q"


def test_server_default_of_thinking() -> None:
    assert render({"messages": [USER]}, default_thinking=False).text == text([USER], **OFF)


def test_lone_surrogates_are_replaced() -> None:
    prompt = text([{"role": "user", "content": "a\ud800b\ud83d\ude00"}], **OFF)
    assert "<｜User｜>a\ufffdb😀<｜Assistant｜>" in prompt


@pytest.mark.parametrize("body", [[], None, "x", {"messages": [USER], "add_generation_prompt": 1}])
def test_malformed_request(body: Any) -> None:
    with pytest.raises(RequestError):
        render(body)
