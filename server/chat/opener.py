"""Decides where calls begin in free text.

A block tag counts if an invoke tag follows it; an invoke without a block counts if its tool is
declared and its closing tag is there. A marker that is only talked about stays text.
"""

from __future__ import annotations

from collections.abc import Set

from server.chat.markup import UNDECIDED, Dialect, Kind, Tag, TagMatcher, Undecided

MAX_BARE_CALL = 64 * 1024
"""Most characters held to see whether an invoke without a block is a whole call."""
MAX_SPACE = 256
"""Most white space between a block tag and its first invoke tag."""

_OPENERS = frozenset({Kind.CALLS_OPEN, Kind.INVOKE_OPEN})
_AFTER_BLOCK_OPEN = frozenset({Kind.INVOKE_OPEN, Kind.PARAMETER_OPEN})


class OpenerMatcher:
    """Finds call openers in one text that grows at its end and is cut at its start.

    Args:
        dialect: how markers appear.
        names: names of the declared tools.

    Attributes:
        malformed: blocks seen so far that begin with a parameter instead of an invoke.
    """

    def __init__(self, dialect: Dialect, names: Set[str]) -> None:
        self._matcher = TagMatcher(dialect)
        self._names = names
        self._closings = self._matcher.spellings(Kind.INVOKE_CLOSE)
        self._longest_closing = max(map(len, self._closings))
        self._searched = 0
        self.malformed = 0

    def match(self, text: str, pos: int) -> int | Undecided | None:
        """Where the first invoke tag stands if calls begin at `pos`, where a `<` stands."""
        tag = self._matcher.match(text, pos, _OPENERS)
        if not isinstance(tag, Tag):
            return tag
        if tag.kind is Kind.INVOKE_OPEN:
            return self._match_bare_call(text, pos, tag)
        start = tag.stop
        limit = start + MAX_SPACE
        while start < len(text) and start <= limit and text[start].isspace():
            start += 1
        if start == len(text):
            return UNDECIDED
        if text[start] != "<":
            return None
        first = self._matcher.match(text, start, _AFTER_BLOCK_OPEN)
        if not isinstance(first, Tag):
            return first
        if first.kind is not Kind.INVOKE_OPEN:
            self.malformed += 1
            return None
        return start

    def forget(self, count: int) -> None:
        """The first `count` characters of the text were cut off."""
        self._searched = max(0, self._searched - count)

    def _match_bare_call(self, text: str, pos: int, tag: Tag) -> int | Undecided | None:
        if tag.name not in self._names:
            return None
        # What was searched for an earlier tag holds no closing tag for a later one either.
        search_from = max(tag.stop, self._searched)
        ends = [text.find(closing, search_from) for closing in self._closings]
        found = [end for end in ends if end >= 0]
        if found:
            return pos if min(found) - pos <= MAX_BARE_CALL else None
        if len(text) - pos > MAX_BARE_CALL + self._longest_closing:
            return None
        self._searched = max(tag.stop, len(text) - self._longest_closing)
        return UNDECIDED
