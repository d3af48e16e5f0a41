from __future__ import annotations

import json
import re

import pytest

from server.chat import Delta, Tool, ToolCallArguments, ToolCallStart
from server.chat.call_parser import CallParser, State, is_strict_json, new_call_id
from server.chat.markup import IN_TEXT

D = "｜DSML｜"
SCHEMA = {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS = (Tool("f", "", SCHEMA), Tool("std::sort", "", {}))


def parse(text: str, finish: bool | None = None) -> tuple[CallParser, list[tuple[str, str]]]:
    """The parser and (name, arguments) of every call; fed character by character."""
    deltas: list[Delta] = []
    parser = CallParser(IN_TEXT, TOOLS, True, deltas.append, str)
    rest = ""
    for char in text:
        rest = parser.consume(rest + char)
    if finish is not None:
        parser.finish(rest, finish)
    names = [
        f"{d.namespace}/{d.name}" if d.namespace else d.name
        for d in deltas
        if isinstance(d, ToolCallStart)
    ]
    arguments = [""] * len(names)
    for delta in deltas:
        if isinstance(delta, ToolCallArguments):
            arguments[delta.index] += delta.text
    return parser, list(zip(names, arguments, strict=True))


def parameter(attributes: str, value: str) -> str:
    return f"<{D} parameter {attributes}>{value}</{D} parameter>\n"


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("", {}),
        (parameter('name="s" string="true"', "1"), {"s": "1"}),
        (parameter('name="n" string="true"', "1"), {"n": "1"}),
        (parameter('name="s" string="false"', "1"), {"s": 1}),
        (parameter('name="s"', "1"), {"s": "1"}),
        (parameter('name="n"', "1"), {"n": 1}),
        (parameter('name="new"', "[1]"), {"new": [1]}),
        (parameter('name="new"', "word"), {"new": "word"}),
        (parameter('name="n" string="maybe"', "2"), {"n": 2}),
        (parameter('string="TRUE" name="n"', "2"), {"n": "2"}),
        (parameter('name="n" string="false"', "007"), {"n": "007"}),
        (parameter('name="n" string="false"', "-Infinity"), {"n": "-Infinity"}),
        (parameter('name="n" string="false"', ""), {"n": ""}),
        (parameter('name="n" string="false"', ' {"a": [1]}\n'), {"n": {"a": [1]}}),
        (parameter('name="q\\" string="true"', "x"), {"q\\": "x"}),
        (f"noise <b> </{D} parameter>" + parameter('name="s"', "x"), {"s": "x"}),
        (parameter('name="s"', f"<{D} x> </{D} y> </"), {"s": f"<{D} x> </{D} y> </"}),
    ],
)
def test_values(inside: str, arguments: dict[str, object]) -> None:
    parser, calls = parse(f'<{D} invoke name="f">\n{inside}</{D} invoke>\n</{D} calls>')
    assert parser.state is State.DONE
    assert [(name, json.loads(text)) for name, text in calls] == [("f", arguments)]


def test_json_is_passed_on_as_written() -> None:
    inside = parameter('name="n" string="false"', "[1.10,1E2]")
    text = f'<{D} invoke name="f">{inside}</{D} invoke>'
    assert parse(text)[1] == [("f", '{"n": [1.10,1E2]}')]


@pytest.mark.parametrize(
    "text",
    [
        f'<{D} invoke name="f"><{D} parameter name="s" string="true">x</{D} invoke></{D} calls>',
        f'<{D} invoke name="f"><{D} parameter name="s" string="true">x</{D} calls>',
        f'<{D} invoke name="f">' + parameter('name="s"', "x") + f"</{D} calls>",
        f'<{D}invoke name="f"><{D}parameter name="s">x</{D}parameter></{D}invoke></{D}tool_calls>',
    ],
)
def test_forgotten_closing_tags_and_older_spellings(text: str) -> None:
    parser, calls = parse(text)
    assert parser.state is State.DONE
    assert calls == [("f", '{"s": "x"}')]


def test_next_invoke_ends_a_call() -> None:
    text = f'<{D} invoke name="f"><{D} invoke name="g"></{D} invoke></{D} calls>'
    assert parse(text)[1] == [("f", "{}"), ("g", "{}")]


def test_namespace_is_split_unless_the_full_name_is_declared() -> None:
    text = "".join(f'<{D} invoke name="{n}"></{D} invoke>' for n in ("ns::x", "std::sort", "::y"))
    assert [name for name, _ in parse(text)[1]] == ["ns/x", "std::sort", "::y"]


def test_end_of_text() -> None:
    opened = f'<{D} invoke name="f">' + parameter('name="s"', "x")
    assert parse(opened, finish=True)[1] == [("f", '{"s": "x"}')]
    assert parse(opened, finish=False)[1] == [("f", '{"s": "x"')]
    parser, calls = parse(f'{opened}<{D} parameter name="n" string="false">12', finish=True)
    assert calls == [("f", '{"s": "x", "n": 12')] and parser.cut_values == 1


def test_call_ids_are_fresh() -> None:
    ids = {new_call_id(3) for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"call_03_[A-Za-z0-9]{24}", call_id) for call_id in ids)


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("1", True),
        (' {"a": [null, -1.5e3]}\n', True),
        ('"\\ud800"', True),
        ("NaN", False),
        ("[Infinity]", False),
        ("01", False),
        ("", False),
        ("{'a': 1}", False),
        ("[" * 100_000, False),
    ],
)
def test_strict_json(text: str, strict: bool) -> None:
    assert is_strict_json(text) is strict
