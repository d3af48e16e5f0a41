"""Two filters on streamed text: newlines that may have to go, and stop strings."""

from __future__ import annotations

from collections.abc import Sequence


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


class StopFilter:
    """Cuts a text where the first stop string is complete.

    The one that ends first wins; of several with the same end, the longest.

    Attributes:
        matched: the stop string that was found, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Text that is certain not to belong to a stop string; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(i + len(stop), i, stop) for stop in self._stops if (i := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        certain = min(self._possible_start(text, stop) for stop in self._stops)
        self._held = text[certain:]
        return text[:certain]

    def release(self) -> str:
        """The held text, which turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _possible_start(text: str, stop: str) -> int:
        """Index from which the end of `text` could be the beginning of `stop`."""
        start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while start >= 0:
            if stop.startswith(text[start:]):
                return start
            start = text.find(stop[0], start + 1)
        return len(text)
