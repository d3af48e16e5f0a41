"""Reads a call block: calls, their parameters and values.

    BLOCK ──invoke──▶ CALL ──parameter──▶ VALUE
      ▲  ◀──/invoke──   ◀──/parameter──
      └──/calls──▶ DONE

A forgotten closing tag is supplied: `/invoke` and `/calls` also end a value, `/calls` and the next
`invoke` also end a call. Unknown text between tags is skipped. The arguments of a call that ended
are always valid JSON.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, NoReturn

from server.chat.events import Delta, Tool, ToolCallArguments, ToolCallStart
from server.chat.markup import UNDECIDED, Dialect, Kind, Tag, TagMatcher
from server.chat.tools import split_namespace

_ID_ALPHABET = string.ascii_letters + string.digits
_IN_BLOCK = frozenset({Kind.INVOKE_OPEN, Kind.CALLS_CLOSE})
_IN_CALL = frozenset({Kind.PARAMETER_OPEN, Kind.INVOKE_OPEN, Kind.INVOKE_CLOSE, Kind.CALLS_CLOSE})
_IN_VALUE = frozenset({Kind.PARAMETER_CLOSE, Kind.INVOKE_CLOSE, Kind.CALLS_CLOSE})


class State(Enum):
    """Where in a call block the text stands."""

    BLOCK = auto()
    CALL = auto()
    VALUE = auto()
    DONE = auto()


def new_call_id(index: int) -> str:
    """A fresh id for call number `index` of a reply."""
    return f"call_{index:02d}_" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(24))


def is_strict_json(text: str) -> bool:
    """Whether `text` is JSON by the standard: no NaN, no Infinity."""
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class CallParser:
    """State machine over the text of one call block.

    Args:
        dialect: how markers appear.
        tools: declared tools; their schemas decide where the markup leaves the type open.
        parallel: whether more than one call is wanted.
        emit: receives every delta.
        call_id: makes the id of a call from its index.

    Attributes:
        state: where the text stands.
        count: calls begun so far.
        cut_values: 1 if the text ended by itself inside a value.
    """

    def __init__(
        self,
        dialect: Dialect,
        tools: tuple[Tool, ...],
        parallel: bool,
        emit: Callable[[Delta], None],
        call_id: Callable[[int], str],
    ) -> None:
        self._dialect = dialect
        self._matcher = TagMatcher(dialect)
        self._tools = tools
        self._parallel = parallel
        self._emit = emit
        self._call_id = call_id
        self._properties: Mapping[str, Any] = {}
        self._has_parameters = False
        self._is_text: bool | None = None
        self._held_value: list[str] = []
        self.state = State.BLOCK
        self.count = 0
        self.cut_values = 0

    def start_call(self, full_name: str) -> None:
        """A call begins; `full_name` may carry a namespace."""
        declared = next((tool for tool in self._tools if tool.name == full_name), None)
        properties = declared.parameters.get("properties") if declared else None
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._has_parameters = False
        name, namespace = split_namespace(full_name, self._tools)
        self._emit(ToolCallStart(self.count, self._call_id(self.count), name, namespace))
        self.count += 1
        self.state = State.CALL

    def consume(self, text: str) -> str:
        """Process as much as can be decided; the rest must be given again with more text."""
        pos = 0
        while self.state is not State.DONE:
            found = self._next_tag(text, pos)
            if isinstance(found, int):
                if self.state is State.VALUE:
                    self._add_to_value(text[pos:found])
                return text[found:]
            start, tag = found
            if self.state is State.VALUE:
                self._add_to_value(text[pos:start])
            self._apply(tag)
            pos = tag.stop
        return ""

    def finish(self, rest: str, by_model: bool) -> None:
        """The text ended.

        Args:
            rest: what `consume` returned last.
            by_model: the model ended it; False if it was cut.
        """
        if self.state is State.VALUE:
            if not rest.startswith(f"</{self._dialect.dsml}"):
                self._add_to_value(rest)
            if self._held_value:
                self._arguments(self._take_held())
            self.cut_values += by_model
        elif self.state is State.CALL and by_model:
            self._end_call()
        self.state = State.DONE

    def _next_tag(self, text: str, pos: int) -> tuple[int, Tag] | int:
        """Position and tag, or the position from which text has to wait."""
        kinds = {State.BLOCK: _IN_BLOCK, State.CALL: _IN_CALL, State.VALUE: _IN_VALUE}[self.state]
        start = text.find("<", pos)
        while start >= 0:
            tag = self._matcher.match(text, start, kinds)
            if tag is UNDECIDED:
                return start
            if isinstance(tag, Tag):
                return start, tag
            start = text.find("<", start + 1)
        return len(text)

    def _apply(self, tag: Tag) -> None:
        if self.state is State.VALUE:
            self._end_value()
        if tag.kind is Kind.PARAMETER_OPEN:
            self._start_parameter(tag)
            return
        if self.state is State.CALL and tag.kind is not Kind.PARAMETER_CLOSE:
            self._end_call()
        if self.state is not State.DONE:
            if tag.kind is Kind.INVOKE_OPEN:
                self.start_call(tag.name)
            elif tag.kind is Kind.CALLS_CLOSE:
                self.state = State.DONE

    def _start_parameter(self, tag: Tag) -> None:
        opening = ", " if self._has_parameters else "{"
        self._has_parameters = True
        self._arguments(f"{opening}{json.dumps(tag.name, ensure_ascii=False)}: ")
        schema = self._properties.get(tag.name)
        declared_text = isinstance(schema, Mapping) and schema.get("type") == "string"
        self._is_text = True if tag.is_text is None and declared_text else tag.is_text
        if self._is_text:
            self._arguments('"')
        self.state = State.VALUE

    def _add_to_value(self, text: str) -> None:
        """A string is passed on as it comes; any other value waits until it can be judged."""
        if not text:
            return
        text = self._dialect.restore(text)
        if self._is_text:
            self._arguments(_escaped(text))
        else:
            self._held_value.append(text)

    def _end_value(self) -> None:
        if self._is_text:
            self._arguments('"')
        else:
            text = self._take_held()
            self._arguments(text if is_strict_json(text) else f'"{_escaped(text)}"')
        self.state = State.CALL

    def _end_call(self) -> None:
        self._arguments("}" if self._has_parameters else "{}")
        self.state = State.BLOCK if self._parallel else State.DONE

    def _take_held(self) -> str:
        text = "".join(self._held_value)
        self._held_value.clear()
        return text

    def _arguments(self, text: str) -> None:
        self._emit(ToolCallArguments(self.count - 1, text))


def _escaped(text: str) -> str:
    """The inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
