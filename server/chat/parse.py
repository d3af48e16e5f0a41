"""Reads generated text back into reasoning, answer and calls, piece by piece.

    REASONING ──</think>──▶ ANSWER ──call opener──▶ CALLS ──/calls──▶ DONE
        └──────────────call opener──────────────────▲   stop string ──▶ DONE

REASONING and ANSWER are free text of their channel. A call opener is a block tag followed by an
invoke tag, or a whole invoke of a declared tool without a block; it counts only if the request has
tools. Anything else that looks like markup is text. CALLS is read by `CallParser`.

Newlines are dropped at the start of a channel, before the end of reasoning and before a call
block. Text is held back only while it can still become markup, a stop string or such a newline,
and every decision depends on the text alone, so the way it is cut into pieces has no effect on
the joined result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from itertools import groupby

from engine.stop import StopMatcher
from engine.tokenizer import Tokenizer, replace_surrogates
from server.chat.call_parser import CallParser, State, new_call_id
from server.chat.events import (
    ChatReply,
    ContentDelta,
    Delta,
    ParserSetup,
    ReasoningDelta,
    Span,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)
from server.chat.markup import BY_ID, IN_TEXT, UNDECIDED, Undecided
from server.chat.newlines import NewlineHolder
from server.chat.opener import OpenerMatcher
from server.chat.spans import DSML, THINK_CLOSE, THINK_OPEN, SpanBuilder
from server.chat.tools import forced_call_text


class Channel(Enum):
    """What the text at hand belongs to."""

    REASONING = auto()
    ANSWER = auto()
    CALLS = auto()
    DONE = auto()


def marker_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """Token id -> text of the markers that `ChatParser.feed_token` takes by id."""
    return {tokenizer.markers[text]: text for text in (THINK_OPEN, THINK_CLOSE, DSML)}


class ChatParser:
    """Parser of one reply.

    Args:
        setup: where the text begins, from `RenderedPrompt.setup`.
        stop: stop strings; they act in the answer only and are not returned.
        markers: marker ids from `marker_ids`, if tokens are fed with `feed_token`; then markers
            count only by id. Without it they count by spelling and `feed` must be used.
        call_id: makes the id of a call from its index.
    """

    def __init__(
        self,
        setup: ParserSetup,
        *,
        stop: Sequence[str] = (),
        markers: Mapping[int, str] | None = None,
        call_id: Callable[[int], str] = new_call_id,
    ) -> None:
        self._dialect = IN_TEXT if markers is None else BY_ID
        stand_ins = {
            THINK_OPEN: BY_ID.think_open,
            THINK_CLOSE: BY_ID.think_close,
            DSML: BY_ID.dsml,
        }
        self._markers = {i: (text, stand_ins[text]) for i, text in (markers or {}).items()}
        self._setup = setup
        names = frozenset(tool.name for tool in setup.tools)
        self._opener = OpenerMatcher(self._dialect, names)
        self._calls = CallParser(self._dialect, setup.tools, setup.parallel, self._emit, call_id)
        self._stop = StopMatcher(stop)
        self._buffer = ""
        self._deltas: list[Delta] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._started: list[ToolCallStart] = []
        self._arguments: list[list[str]] = []
        self._finish_reason: str | None = None
        self._force_now = False
        self._channel = Channel.ANSWER
        self._think_open_allowed = setup.start == "reasoning" and not setup.continuation
        trim = not setup.continuation
        if setup.start == "reasoning":
            self._enter_text(Channel.REASONING, trim)
        else:
            self._enter_text(Channel.ANSWER, trim)
        if setup.start in ("calls", "call"):
            self._enter_calls(setup.forced_name if setup.start == "call" else None)

    @property
    def done(self) -> bool:
        """Whether the reply is complete and the generation should be ended."""
        return self._channel is Channel.DONE

    @property
    def in_reasoning(self) -> bool:
        """Whether the text fed so far ends inside the reasoning."""
        return self._channel is Channel.REASONING

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the reply, or None."""
        return self._stop.hit

    @property
    def malformed_calls(self) -> int:
        """Call markup that could not be used: blocks that begin with a parameter, and values inside
        which the model ended its turn."""
        return self._opener.malformed + self._calls.cut_values

    def feed(self, text: str) -> list[Delta]:
        """More generated text; returns what became certain."""
        return self._feed(replace_surrogates(text))

    def feed_token(self, token_id: int, text: str) -> list[Delta]:
        """One generated token and the text its stream decoder gave for it."""
        marker = self._markers.get(token_id)
        if marker is None:
            return self._feed(text)
        spelling, stand_in = marker
        # The decoder may put U+FFFD for an unfinished character before the marker.
        return self._feed(text.removesuffix(spelling) + stand_in)

    def finish(self, engine_finish: str) -> tuple[list[Delta], str]:
        """The generation ended; returns the last deltas and the finish reason for the client.

        Args:
            engine_finish: "stop" if the model ended its turn or the caller ended the generation
                because of `done`; "length", "abort" or "error" if it was cut.
        """
        if self._finish_reason is None:
            by_model = engine_finish == "stop"
            if not self.done:
                self._close(by_model)
            if by_model or self.matched_stop is not None:
                self._finish_reason = "tool_calls" if self._calls.count else "stop"
            else:
                self._finish_reason = engine_finish
        return self._take_deltas(), self._finish_reason

    def take_forced(self, at_stop: bool = False) -> tuple[Span, ...] | None:
        """Spans to append to the prompt where a demanded call must be opened, else None.

        Ask after every token, and once more with `at_stop` when the model ended its turn. If there
        are spans, the generation has to go on from: prompt, the tokens fed so far (without an end
        of sentence), these spans. The parser already stands behind them.
        """
        if not (self._force_now or (at_stop and self._call_is_missing())):
            return None
        opening = forced_call_text(self._setup.forced_name)
        if self._channel is Channel.REASONING:
            opening = THINK_CLOSE + opening
        if not self._force_now:
            self._scan_text(final=True)
            if not self._in_text():
                return None
        self._force_now = False
        self._buffer = ""
        self._enter_calls(self._setup.forced_name)
        out = SpanBuilder()
        out.fixed(opening)
        return out.build()

    def reply(self) -> ChatReply:
        """Everything returned so far, joined."""
        calls = tuple(
            ToolCall(start.id, start.name, "".join(pieces), start.namespace)
            for start, pieces in zip(self._started, self._arguments, strict=True)
        )
        return ChatReply("".join(self._reasoning), "".join(self._content), calls)

    def _feed(self, text: str) -> list[Delta]:
        if not (self.done or self._force_now or self._finish_reason):
            self._buffer += text
            self._advance()
        return self._take_deltas()

    def _advance(self) -> None:
        if self._in_text():
            self._scan_text(final=False)
        if self._channel is Channel.CALLS:
            self._buffer = self._calls.consume(self._buffer)
            if self._calls.state is State.DONE:
                self._channel = Channel.DONE
        if self.done:
            self._buffer = ""

    def _close(self, by_model: bool) -> None:
        if self._in_text():
            self._scan_text(final=True)
        if self._in_text():
            self._text(self._newlines.release())
            self._emit_content(self._stop.flush())
        if self._channel is Channel.CALLS:
            self._calls.finish(self._calls.consume(self._buffer), by_model)
        self._channel = Channel.DONE
        self._buffer = ""

    def _call_is_missing(self) -> bool:
        return self._setup.must_call and self._calls.count == 0 and self._in_text()

    def _scan_text(self, final: bool) -> None:
        """Move free text to its channel up to markup or to what cannot be decided yet."""
        pos = 0
        while self._in_text() and pos < len(self._buffer) and not self._force_now:
            start = self._next_candidate(pos)
            if start > pos:
                self._text(self._newlines.push(self._buffer[pos:start]))
                pos = start
                continue
            after = self._decide(pos)
            if after is UNDECIDED and not final:
                break
            if isinstance(after, int):
                pos = after
            else:
                self._text(self._newlines.push(self._buffer[pos]))
                pos += 1
        self._buffer = self._buffer[pos:]
        self._opener.forget(pos)

    def _in_text(self) -> bool:
        return self._channel in (Channel.REASONING, Channel.ANSWER)

    def _next_candidate(self, pos: int) -> int:
        """Index of the next character at which markup may begin, or the length of the buffer."""
        first = {"<", self._dialect.think_open[0], self._dialect.think_close[0]}
        places = (self._buffer.find(char, pos) for char in first)
        return min((place for place in places if place >= 0), default=len(self._buffer))

    def _decide(self, pos: int) -> int | Undecided | None:
        """Act on markup at `pos` and return the position after it; None if it is text."""
        undecided = False
        for marker, act in self._think_markers():
            if self._buffer.startswith(marker, pos):
                act()
                return pos + len(marker)
            rest = len(self._buffer) - pos
            undecided |= rest < len(marker) and marker.startswith(self._buffer[pos:])
        if self._setup.tools and self._buffer[pos] == "<":
            after = self._opener.match(self._buffer, pos)
            if isinstance(after, int):
                self._enter_calls(None)
                return after
            undecided |= after is UNDECIDED
        return UNDECIDED if undecided else None

    def _think_markers(self) -> list[tuple[str, Callable[[], None]]]:
        """Think markers that mean something here, and what they do."""
        markers = [(self._dialect.think_close, self._on_think_close)]
        if self._think_open_allowed and self._channel is Channel.REASONING:
            markers.append((self._dialect.think_open, self._on_think_open))
        return markers

    def _on_think_close(self) -> None:
        if self._channel is Channel.ANSWER:
            self._text(self._newlines.release())
            return
        self._newlines.drop()
        self._force_now = self._setup.must_call
        self._enter_text(Channel.ANSWER, trim=True)

    def _on_think_open(self) -> None:
        """A repeated opening tag is dropped where it is the very first text."""
        self._think_open_allowed = False

    def _enter_text(self, channel: Channel, trim: bool) -> None:
        self._channel = channel
        hold = channel is Channel.REASONING or bool(self._setup.tools)
        self._newlines = NewlineHolder(trim, hold)

    def _enter_calls(self, name: str | None) -> None:
        self._newlines.drop()
        if self._channel is Channel.ANSWER:
            self._emit_content(self._stop.flush())
        self._channel = Channel.CALLS
        if name is not None:
            self._calls.start_call(name)

    def _text(self, text: str) -> None:
        """Text of the current channel."""
        if not text:
            return
        self._think_open_allowed = False
        text = self._dialect.restore(text)
        if self._channel is Channel.REASONING:
            self._reasoning.append(text)
            self._emit(ReasoningDelta(text))
            return
        certain, hit = self._stop.feed(text)
        self._emit_content(certain)
        if hit is not None:
            self._channel = Channel.DONE

    def _emit_content(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._emit(ContentDelta(text))

    def _emit(self, delta: Delta) -> None:
        if isinstance(delta, ToolCallStart):
            self._started.append(delta)
            self._arguments.append([])
        elif isinstance(delta, ToolCallArguments):
            self._arguments[delta.index].append(delta.text)
        self._deltas.append(delta)

    def _take_deltas(self) -> list[Delta]:
        """The queued deltas; neighbours that continue the same text become one."""
        queued, self._deltas = self._deltas, []
        deltas: list[Delta] = []
        for _, group in groupby(queued, key=lambda d: (type(d), getattr(d, "index", None))):
            first, *rest = group
            if isinstance(first, ToolCallStart):
                deltas += [first, *rest]
            else:
                text = "".join(d.text for d in (first, *rest) if not isinstance(d, ToolCallStart))
                deltas.append(replace(first, text=text))
        return deltas
