from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tokenizer import Tokenizer
from server.chat import (
    ChatParser,
    ContentDelta,
    ParserSetup,
    ReasoningDelta,
    Tool,
    ToolCallStart,
    marker_ids,
    stop_strings,
)
from server.chat.opener import MAX_BARE_CALL, MAX_SPACE
from server.chat.render import initial_setup
from server.chat.thinking import resolve_thinking
from server.chat.tools import resolve_tools

D = "｜DSML｜"
OPEN, CLOSE = f"<{D} calls>\n", f"</{D} calls>"
TOOL = Tool("f", "", {"properties": {"a": {"type": "string"}}})
ANSWER = ParserSetup(start="answer", tools=(TOOL,))
REASONING = ParserSetup(start="reasoning", tools=(TOOL,))

Run = Callable[..., Any]


def invoke(name: str = "f", inside: str = "") -> str:
    return f'<{D} invoke name="{name}">\n{inside}</{D} invoke>\n'


def value(name: str, content: str, kind: str = "true") -> str:
    return f'<{D} parameter name="{name}" string="{kind}">{content}</{D} parameter>\n'


def setup_of(request: dict[str, Any]) -> ParserSetup:
    return initial_setup(resolve_thinking(request), resolve_tools(request))


def test_vector_at_every_split(
    parse_vector: dict[str, Any], run_parser: Run, as_vector: Run
) -> None:
    request, text = parse_vector["request"], parse_vector["model_output"]
    cuts = [[text[:i], text[i:]] for i in range(len(text) + 1)]
    cuts += [[text], list(text), parse_vector.get("chunks", [text])]
    for pieces in cuts:
        parser = ChatParser(setup_of(request), stop=stop_strings(request))
        reply, reason = run_parser(parser, pieces, parse_vector["engine_finish"])
        expected = parse_vector["expected"]
        assert as_vector(reply, reason, expected) == expected, pieces


FRAGMENTS = [
    "<",
    "</",
    "<think>",
    "</think>",
    f"<{D}",
    f"</{D}",
    D,
    OPEN,
    f"<{D}tool_calls>",
    CLOSE,
    f'<{D} invoke name="f">',
    f'<{D} invoke name="other">\n',
    f"</{D} invoke>",
    value("a", "x"),
    value("n", "1", "false"),
    f'<{D} parameter name="a"',
    ' string="true">',
    f"</{D} parameter>",
    "\n",
    "\n\n",
    " ",
    "STOP",
    "ST",
    "text",
    "é🦀",
    '"',
    "\\",
    ">",
]
SETUPS = [
    ANSWER,
    REASONING,
    ParserSetup(start="answer"),
    ParserSetup(start="reasoning"),
    ParserSetup(start="reasoning", tools=(TOOL,), continuation=True),
    ParserSetup(start="calls", tools=(TOOL,), must_call=True),
    ParserSetup(start="call", tools=(TOOL,), must_call=True, forced_name="f"),
    ParserSetup(start="answer", tools=(TOOL,), parallel=False),
]


@settings(max_examples=500, deadline=None)
@given(
    soup=st.lists(st.sampled_from(FRAGMENTS), max_size=25),
    setup=st.sampled_from(SETUPS),
    stop=st.sampled_from([(), ("STOP",), ("STOP", "TO", "<"), ("\n\n",)]),
    finish=st.sampled_from(["stop", "length"]),
    cut=st.randoms(use_true_random=False),
)
def test_cutting_has_no_effect(
    soup: list[str], setup: ParserSetup, stop: tuple[str, ...], finish: str, cut: random.Random
) -> None:
    text = "".join(soup)

    def parse(pieces: list[str]) -> tuple[Any, ...]:
        parser = ChatParser(setup, stop=stop, call_id=str)
        deltas = [delta for piece in pieces for delta in parser.feed(piece)]
        last, reason = parser.finish(finish)
        deltas += last
        reply = parser.reply()
        assert reply.reasoning == "".join(d.text for d in deltas if isinstance(d, ReasoningDelta))
        assert reply.content == "".join(d.text for d in deltas if isinstance(d, ContentDelta))
        return reply, reason, parser.matched_stop, parser.malformed_calls

    whole = parse([text])
    marks = sorted(cut.randrange(len(text) + 1) for _ in range(cut.randrange(8)))
    bounds = [0, *marks, len(text)]
    assert parse([text[a:b] for a, b in pairwise(bounds)]) == whole
    assert parse(list(text)) == whole
    reply, reason, _, _ = whole
    if reason == "tool_calls":
        for call in reply.tool_calls[:-1]:
            assert isinstance(json.loads(call.arguments), dict)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([f for f in FRAGMENTS if "think" not in f]), max_size=20))
def test_no_text_is_lost_where_calls_are_not_possible(soup: list[str]) -> None:
    text = "".join(soup)
    for start in ("answer", "reasoning"):
        parser = ChatParser(ParserSetup(start=start))
        parser.feed(text)
        assert parser.finish("stop")[1] == "stop"
        reply = parser.reply()
        assert reply.reasoning + reply.content == text.lstrip("\n")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_no_text_but_newlines_is_lost_where_no_call_is_found(soup: list[str]) -> None:
    text = "".join(soup)
    parser = ChatParser(ANSWER)
    parser.feed(text)
    parser.finish("stop")
    reply = parser.reply()
    if not reply.tool_calls:
        assert reply.content.replace("\n", "") == text.replace("</think>", "").replace("\n", "")
        assert reply.content.endswith(text.replace("</think>", "").lstrip("\n"))


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN}then nothing",
        f"{OPEN}{CLOSE} an empty block",
        f"a lone {CLOSE} and </{D} invoke> and </{D} parameter>",
        f"{OPEN}{value('a', 'parameter where invoke belongs')}{CLOSE}",
        f"{invoke('undeclared')} without a block",
        f'<{D} invoke name="f">\n never closed',
        f'{OPEN}<{D} invoke name="two\nlines"></{D} invoke>',
        f'{OPEN}<{D} invoke name="{"x" * 201}"></{D} invoke>',
        f'{OPEN}<{D} invoke name=""></{D} invoke>',
        f"{OPEN}<{D} invoke></{D} invoke>",
        f"{OPEN}{' ' * (MAX_SPACE + 1)}{invoke()}{CLOSE}".replace(invoke(), invoke("other")),
    ],
)
def test_markup_that_is_no_call_is_text(text: str, run_parser: Run) -> None:
    for pieces in ([text], list(text)):
        reply, reason = run_parser(ChatParser(ANSWER), pieces, "stop")
        assert (reply.content, reply.tool_calls, reason) == (text, (), "stop")


def test_text_is_released_as_soon_as_it_cannot_be_markup() -> None:
    parser = ChatParser(ANSWER)
    assert parser.feed(f"a <{D} ca") == [ContentDelta("a ")]
    assert parser.feed("t") == [ContentDelta(f"<{D} cat")]
    assert parser.feed("\n\n") == []
    assert parser.feed("x") == [ContentDelta("\n\nx")]
    assert parser.feed(f"{OPEN}\n") == []
    assert parser.feed("!") == [ContentDelta(f"{OPEN}\n!")]


def test_string_arguments_stream_and_their_end_is_not_leaked() -> None:
    parser = ChatParser(ANSWER, call_id=str)
    assert parser.feed(OPEN + f'<{D} invoke name="f">') == [ToolCallStart(0, "0", "f")]
    parser.feed(f'<{D} parameter name="a" string="true">')
    assert [d.text for d in parser.feed("2>&1")] == ["2>&1"]  # type: ignore[union-attr]
    assert parser.feed(f"</{D} para") == []
    assert [d.text for d in parser.feed("meter>")] == ['"']  # type: ignore[union-attr]


def test_bare_call_is_held_up_to_a_limit(run_parser: Run) -> None:
    for size, is_call in ((MAX_BARE_CALL - 200, True), (MAX_BARE_CALL + 1, False)):
        text = invoke("f", value("a", "x" * size))
        pieces = [text[i : i + 1000] for i in range(0, len(text), 1000)]
        for cut in ([text], pieces):
            reply, _ = run_parser(ChatParser(ANSWER), cut, "stop")
            assert bool(reply.tool_calls) == is_call
            assert reply.content == ("" if is_call else text)


def test_generation_ends_after_the_block_or_the_only_wanted_call() -> None:
    parser = ChatParser(ANSWER)
    parser.feed(f"{OPEN}{invoke()}{invoke()}")
    assert not parser.done
    parser.feed(CLOSE)
    assert parser.done and len(parser.reply().tool_calls) == 2
    single = ChatParser(ParserSetup(start="answer", tools=(TOOL,), parallel=False))
    single.feed(f"{OPEN}{invoke()}{invoke()}{CLOSE}")
    assert single.done and len(single.reply().tool_calls) == 1
    assert single.finish("stop")[1] == "tool_calls"


def test_stop_strings_act_in_the_answer_only(run_parser: Run) -> None:
    text = f"END</think>\n\nx\n\n{OPEN}{invoke('f', value('a', 'END'))}{CLOSE}"
    reply, reason = run_parser(ChatParser(REASONING, stop=["END", "\n\n"]), list(text), "stop")
    assert (reply.reasoning, reply.content, reason) == ("END", "x", "tool_calls")
    assert json.loads(reply.tool_calls[0].arguments) == {"a": "END"}
    parser = ChatParser(REASONING, stop=["END", "N"])
    parser.feed("r</think>abEN")
    assert parser.done and parser.matched_stop == "N"
    assert parser.reply().content == "abE"
    assert parser.finish("length") == ([], "stop")


@pytest.mark.parametrize("start", ["reasoning", "answer"])
def test_continuation_keeps_leading_newlines(start: Any, run_parser: Run) -> None:
    parser = ChatParser(ParserSetup(start=start, continuation=True))
    reply, _ = run_parser(parser, ["\n", "\nx"], "stop")
    assert reply.reasoning + reply.content == "\n\nx"


def test_forced_block_and_call(run_parser: Run) -> None:
    setup = ParserSetup(start="calls", tools=(TOOL,), must_call=True)
    reply, reason = run_parser(ChatParser(setup), [invoke(), CLOSE], "stop")
    assert (len(reply.tool_calls), reply.content, reason) == (1, "", "tool_calls")
    setup = ParserSetup(start="call", tools=(TOOL,), must_call=True, forced_name="f")
    reply, reason = run_parser(ChatParser(setup), [value("a", "x"), f"</{D} invoke>"], "stop")
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("f", '{"a": "x"}')]


@pytest.mark.parametrize("name", [None, "f"])
def test_demanded_call_is_forced_after_the_reasoning(name: str | None) -> None:
    setup = ParserSetup(start="reasoning", tools=(TOOL,), must_call=True, forced_name=name)
    parser = ChatParser(setup)
    parser.feed("r\n")
    assert parser.take_forced() is None and parser.in_reasoning
    parser.feed("</think>answer that is not wanted")
    spans = parser.take_forced()
    opening = f"\n\n{OPEN}" + ("" if name is None else f'<{D} invoke name="f">\n')
    assert spans is not None and "".join(text for text, _ in spans) == opening
    assert {text for text, special in spans if special} == {D}
    assert parser.take_forced() is None
    parser.feed(invoke("f", value("a", "x")) if name is None else value("a", "x"))
    assert parser.finish("stop")[1] == "tool_calls"
    reply = parser.reply()
    assert (reply.reasoning, reply.content) == ("r", "")
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("f", '{"a": "x"}')]


def test_demanded_call_is_forced_when_the_model_stops_without_one() -> None:
    setup = ParserSetup(start="reasoning", tools=(TOOL,), must_call=True)
    parser = ChatParser(setup)
    parser.feed("thoughts <")
    spans = parser.take_forced(at_stop=True)
    assert spans is not None
    assert spans[0] == ("</think>", True)
    parser.feed(invoke() + CLOSE)
    assert parser.done and parser.take_forced(at_stop=True) is None
    assert parser.reply().reasoning == "thoughts <"
    assert len(parser.reply().tool_calls) == 1


def test_call_inside_the_reasoning_satisfies_the_demand() -> None:
    parser = ChatParser(ParserSetup(start="reasoning", tools=(TOOL,), must_call=True))
    parser.feed(f"r\n\n{OPEN}{invoke()}{CLOSE}")
    assert parser.done and parser.take_forced() is None
    assert parser.reply().reasoning == "r"


@pytest.mark.parametrize(
    ("rest", "finish", "arguments", "reason"),
    [
        ("", "length", "", "length"),
        ("", "stop", "{}", "tool_calls"),
        (f'<{D} parameter name="a" string="true">rm <', "stop", '{"a": "rm <', "tool_calls"),
        (f'<{D} parameter name="a" string="true">x</{D} par', "length", '{"a": "x', "length"),
        (f'<{D} parameter name="b" string="false">[1,', "length", '{"b": [1,', "length"),
        (value("a", "x"), "abort", '{"a": "x"', "abort"),
    ],
)
def test_cut_calls(rest: str, finish: str, arguments: str, reason: str, run_parser: Run) -> None:
    text = f'{OPEN}<{D} invoke name="f">\n{rest}'
    reply, got = run_parser(ChatParser(ANSWER), list(text), finish)
    assert (reply.tool_calls[0].arguments, got) == (arguments, reason)


def test_malformed_calls_are_counted() -> None:
    parser = ChatParser(ANSWER)
    parser.feed(f"{OPEN}{value('a', 'x')}{CLOSE}")
    parser.finish("stop")
    assert parser.malformed_calls == 1
    parser = ChatParser(ANSWER)
    parser.feed(f'{OPEN}<{D} invoke name="f"><{D} parameter name="a" string="true">x')
    parser.finish("stop")
    assert parser.malformed_calls == 1


def test_finish_is_repeatable_and_nothing_follows_it() -> None:
    parser = ChatParser(ANSWER)
    parser.feed("a")
    assert parser.finish("stop") == ([], "stop")
    assert parser.feed("b") == [] and parser.finish("length") == ([], "stop")
    assert parser.reply().content == "a"


def feed_ids(tokenizer: Tokenizer, setup: ParserSetup, ids: list[int]) -> ChatParser:
    parser = ChatParser(setup, markers=marker_ids(tokenizer))
    stream = tokenizer.stream()
    for token_id in ids:
        parser.feed_token(token_id, stream.feed(token_id))
    return parser


def test_markers_count_by_id_where_ids_are_known(released: Tokenizer) -> None:
    block = f"\n\n{OPEN}{invoke('f', value('a', 'x'))}{CLOSE}"
    quoted = f"the tags </think> and {block}"
    ids = released.encode_text(quoted) + released.encode_markup("</think>")
    ids += released.encode_text(quoted) + released.encode_markup(block) + [1]
    parser = feed_ids(released, REASONING, ids)
    assert parser.done
    reply = parser.reply()
    assert (reply.reasoning, reply.content) == (quoted, quoted)
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("f", '{"a": "x"}')]


def test_marker_after_half_a_character(released: Tokenizer) -> None:
    half = released.encode_text("🦀")[0]
    parser = feed_ids(released, REASONING, [half, released.markers["</think>"], half])
    parser.finish("stop")
    assert parser.reply().reasoning == "\ufffd" and not parser.in_reasoning


def test_marker_ids_in_odd_places_are_shown_as_text(released: Tokenizer) -> None:
    text = f"a {D} b <think> <{D} {D}"
    parser = feed_ids(released, ANSWER, released.encode_markup(text))
    parser.finish("stop")
    assert parser.reply().content == text
