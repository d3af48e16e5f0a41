"""Choosing the tokens that make up the visible answer, for a chat choice's logprobs.

The parser hands out text, not tokens: it holds back, trims newlines and takes markup away. Tokens
are therefore matched to the answer's text in order; one whose text did not reach the answer is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Pending:
    text: str
    entries: tuple[dict[str, Any], ...]


class AnswerLogprobs:
    """Matches generated tokens to answer text as both arrive."""

    def __init__(self) -> None:
        self._pending: list[_Pending] = []
        self._unfinished: list[dict[str, Any]] = []  # tokens that end inside a character
        self._content = ""  # answer text that no token was matched to yet

    def add_token(self, text: str, entry: dict[str, Any]) -> None:
        """Add a token and the text that became certain with it ("" inside a character)."""
        self._unfinished.append(entry)
        if text:
            self._pending.append(_Pending(text, tuple(self._unfinished)))
            self._unfinished.clear()

    def add_content(self, text: str) -> list[dict[str, Any]]:
        """Add answer text and return the tokens that are completely in it."""
        self._content += text
        matched: list[dict[str, Any]] = []
        while self._pending and self._content:
            token = self._pending[0]
            if len(token.text) > len(self._content) and token.text.startswith(self._content):
                break  # the rest of this token is still held back
            matched += self._match_first()
        return matched

    def finish(self) -> list[dict[str, Any]]:
        """Return the tokens of which only a part is in the answer (cut by a stop string)."""
        matched: list[dict[str, Any]] = []
        while self._pending and self._content:
            matched += self._match_first()
        return matched

    def _match_first(self) -> list[dict[str, Any]]:
        """Take the first token away; return its entries if its text meets the answer's."""
        token = self._pending.pop(0)
        overlap = _overlap(token.text, self._content)
        self._content = self._content[overlap:]
        return list(token.entries) if overlap else []


def _overlap(token: str, content: str) -> int:
    """Characters of `content`'s beginning that `token` covers, after trimming at its front."""
    if token.startswith(content):
        return len(content)
    for start in range(len(token)):
        if content.startswith(token[start:]):
            return len(token) - start
    return 0
