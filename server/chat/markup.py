"""The tags of a call block, matched in text that may still be growing.

A match has three outcomes: a whole tag, no tag, or not decidable before more text arrives. The
last is exact: text is held back only while it can still become a tag.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from server.chat.spans import DSML, THINK_CLOSE, THINK_OPEN

MAX_NAME = 200
"""Most characters of a function name."""
MAX_ATTRIBUTE = 1024
"""Most characters of any other attribute, such as a parameter's name."""
_MAX_ATTRIBUTES = 8
_MAX_ATTRIBUTE_NAME = 32


class Kind(Enum):
    """What a tag is."""

    CALLS_OPEN = auto()
    CALLS_CLOSE = auto()
    INVOKE_OPEN = auto()
    INVOKE_CLOSE = auto()
    PARAMETER_OPEN = auto()
    PARAMETER_CLOSE = auto()


class Undecided(Enum):
    """The one value that says: more text is needed."""

    UNDECIDED = auto()


UNDECIDED = Undecided.UNDECIDED


@dataclass(frozen=True)
class Tag:
    """A whole tag."""

    kind: Kind
    stop: int
    """Index of the first character after it."""
    name: str = ""
    is_text: bool | None = None
    """The `string` attribute of a parameter; None if absent or neither true nor false."""


@dataclass(frozen=True)
class Dialect:
    """How the markers appear in the text that is parsed."""

    dsml: str
    think_open: str
    think_close: str

    def restore(self, text: str) -> str:
        """The text as the client shall see it."""
        if self is IN_TEXT:
            return text
        return (
            text.replace(self.dsml, DSML)
            .replace(self.think_open, THINK_OPEN)
            .replace(self.think_close, THINK_CLOSE)
        )


IN_TEXT = Dialect(DSML, THINK_OPEN, THINK_CLOSE)
"""Markers are recognised by their spelling."""

BY_ID = Dialect("\udc01", "\udc02", "\udc03")
"""Markers are recognised by token id. Inside the parser a lone surrogate, which decoded text never
contains, stands for each, so that a marker spelled with ordinary tokens is text."""

# The leading space belongs to the tag's name in V4.1; V4 wrote none and called the block
# tool_calls, V3.2 function_calls. All are accepted.
_BLOCK_NAMES = ("calls", "tool_calls", "function_calls")


def _heads(dsml: str) -> Mapping[str, Kind]:
    """Beginnings of all tags; a head that ends with > is the whole tag."""
    heads: dict[str, Kind] = {}
    for space in (" ", ""):
        for name in _BLOCK_NAMES:
            heads[f"<{dsml}{space}{name}>"] = Kind.CALLS_OPEN
            heads[f"</{dsml}{space}{name}>"] = Kind.CALLS_CLOSE
        heads[f"<{dsml}{space}invoke "] = Kind.INVOKE_OPEN
        heads[f"</{dsml}{space}invoke>"] = Kind.INVOKE_CLOSE
        heads[f"<{dsml}{space}parameter "] = Kind.PARAMETER_OPEN
        heads[f"</{dsml}{space}parameter>"] = Kind.PARAMETER_CLOSE
    return heads


class TagMatcher:
    """Matches the tags of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._heads = _heads(dialect.dsml)
        self._restore = dialect.restore

    def spellings(self, kind: Kind) -> tuple[str, ...]:
        """All spellings of a tag without attributes."""
        return tuple(head for head, its_kind in self._heads.items() if its_kind is kind)

    def match(self, text: str, start: int, kinds: Collection[Kind]) -> Tag | Undecided | None:
        """The tag of one of `kinds` that begins at `start`, where a `<` stands."""
        undecided = False
        for head, kind in self._heads.items():
            if kind not in kinds:
                continue
            if text.startswith(head, start):
                if head.endswith(">"):
                    return Tag(kind, start + len(head))
                return self._match_attributes(text, start + len(head), kind)
            if len(text) - start < len(head) and head.startswith(text[start:]):
                undecided = True
        return UNDECIDED if undecided else None

    def _match_attributes(self, text: str, pos: int, kind: Kind) -> Tag | Undecided | None:
        """Attributes `name="value"` separated by spaces, up to and with the `>`."""
        attributes: dict[str, str] = {}
        for _ in range(_MAX_ATTRIBUTES):
            name_stop = pos
            while name_stop < len(text) and (text[name_stop].isalnum() or text[name_stop] == "_"):
                name_stop += 1
            if name_stop - pos > _MAX_ATTRIBUTE_NAME:
                return None
            if name_stop == len(text) or text[name_stop:] == "=":
                return UNDECIDED
            if name_stop == pos or not text.startswith('="', name_stop):
                return None
            name, pos = text[pos:name_stop], name_stop + 2
            is_function = kind is Kind.INVOKE_OPEN and name == "name"
            limit = MAX_NAME if is_function else MAX_ATTRIBUTE
            quote = text.find('"', pos, pos + limit + 1)
            value = text[pos : pos + limit + 1 if quote < 0 else quote]
            if is_function and "\n" in value:
                return None
            if quote < 0:
                return UNDECIDED if len(text) - pos <= limit else None
            attributes[name], pos = value, quote + 1
            if pos < len(text) and text[pos] == " ":
                pos += 1
                if pos < len(text) and text[pos] != ">":
                    continue
            if pos == len(text):
                return UNDECIDED
            return self._tag(kind, attributes, pos + 1) if text[pos] == ">" else None
        return None

    def _tag(self, kind: Kind, attributes: Mapping[str, str], stop: int) -> Tag | None:
        name = attributes.get("name")
        if name is None or (kind is Kind.INVOKE_OPEN and not name):
            return None
        is_text = {"true": True, "false": False}.get(attributes.get("string", "").lower())
        return Tag(kind, stop, self._restore(name), is_text)
