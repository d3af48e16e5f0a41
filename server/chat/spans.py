"""Builds a prompt as a list of special tokens and plain text.

Only the template's own markers become special tokens. Everything that comes from a request is
plain text, whatever it contains.
"""

from __future__ import annotations

import re

from engine.tokenizer import (
    ASSISTANT,
    BOS,
    DSML,
    EOS,
    LATEST_REMINDER,
    SYSTEM,
    THINK_CLOSE,
    THINK_OPEN,
    USER,
    Tokenizer,
    replace_surrogates,
)
from server.chat.events import RenderedPrompt, Span

__all__ = [
    "ASSISTANT",
    "BOS",
    "DSML",
    "EOS",
    "LATEST_REMINDER",
    "SYSTEM",
    "THINK_CLOSE",
    "THINK_OPEN",
    "USER",
    "SpanBuilder",
    "prompt_ids",
]

_MARKERS_OF_FIXED_TEXT = re.compile(f"({DSML}|{THINK_OPEN}|{THINK_CLOSE})")


class SpanBuilder:
    """Collects spans in order and joins neighbouring plain text."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._plain: list[str] = []

    def special(self, marker: str) -> None:
        """Append one special token."""
        self._close_plain()
        self._spans.append((marker, True))

    def plain(self, text: str) -> None:
        """Append text of a request; lone surrogates become U+FFFD."""
        if text:
            self._plain.append(replace_surrogates(text))

    def fixed(self, text: str) -> None:
        """Append text of the template itself: its call and think markers are special tokens."""
        for i, piece in enumerate(_MARKERS_OF_FIXED_TEXT.split(text)):
            if i % 2:
                self.special(piece)
            else:
                self.plain(piece)

    def build(self) -> tuple[Span, ...]:
        """All spans so far."""
        self._close_plain()
        return tuple(self._spans)

    def _close_plain(self) -> None:
        if self._plain:
            self._spans.append(("".join(self._plain), False))
            self._plain.clear()


def prompt_ids(prompt: RenderedPrompt, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a rendered prompt; quoted markers stay plain text."""
    return tokenizer.encode_spans(prompt.spans)
