"""Newlines of streamed text that may have to go, depending on what follows them."""

from __future__ import annotations


class NewlineHolder:
    """Drops newlines at the start of a text and holds those at its end until what follows is known.

    Args:
        trim_start: drop newlines at the start.
        hold_end: hold newlines at the end so that `drop` can remove them.
    """

    def __init__(self, trim_start: bool, hold_end: bool) -> None:
        self._at_start = trim_start
        self._hold_end = hold_end
        self._held = ""

    def push(self, text: str) -> str:
        """Text that is certain now."""
        if self._at_start:
            text = text.lstrip("\n")
        if not text:
            return ""
        self._at_start = False
        text = self._held + text
        certain = text.rstrip("\n") if self._hold_end else text
        self._held = text[len(certain) :]
        return certain

    def release(self) -> str:
        """The held newlines, which turned out to belong to the text; trimming ends."""
        held, self._held, self._at_start = self._held, "", False
        return held

    def drop(self) -> None:
        """Forget the held newlines."""
        self._held = ""
