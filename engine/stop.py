"""Search for stop strings in a text that arrives in pieces.

The text of a match is never sent, nor is any text before it held longer than needed: only a suffix
that may still become a stop string waits. How the text is cut into pieces has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Find the stop string that is complete first; among those that end together, the longest.

    One automaton per string (Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977), so
    each character costs a constant number of steps on average, whatever the strings look like.

    Args:
        stop_strings: strings that end the text; none means that all text passes through.

    Raises:
        ValueError: a stop string is empty.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if any(not stop for stop in stop_strings):
            raise ValueError("a stop string is empty; it would match before any text")
        self._stops = tuple(dict.fromkeys(stop_strings))
        self._fallbacks = tuple(_fallback_table(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._hit: str | None = None

    @property
    def hit(self) -> str | None:
        """The stop string that was found, or None so far."""
        return self._hit

    def feed(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text.

        Returns:
            The text that can be sent now, and the stop string that was found or None. After a hit
            the text ends right before the match, and every later call returns an empty text.
        """
        if self._hit is not None:
            return "", self._hit
        text = self._held + text
        for end in range(len(self._held), len(text)):
            found = self._advance(text[end])
            if found is not None:
                self._hit, self._held = found, ""
                return text[: end + 1 - len(found)], found
        keep = max(self._matched, default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], None

    def flush(self) -> str:
        """Return the text held back; the generation has ended, so it can no longer match."""
        text, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return text

    def _advance(self, char: str) -> str | None:
        """Move every automaton by one character; return the longest string complete now."""
        found: str | None = None
        for i, (stop, fallback) in enumerate(zip(self._stops, self._fallbacks, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = fallback[matched]
            matched += stop[matched] == char
            self._matched[i] = matched
            if matched == len(stop) and len(stop) > len(found or ""):
                found = stop
        return found


def _fallback_table(stop: str) -> tuple[int, ...]:
    """For each prefix length: the longest proper prefix of the string that also ends that prefix.

    A full match needs no entry: the search ends there.
    """
    table = [0] * len(stop)
    for length in range(2, len(stop)):
        matched = table[length - 1]
        while matched and stop[matched] != stop[length - 1]:
            matched = table[matched]
        table[length] = matched + (stop[matched] == stop[length - 1])
    return tuple(table)
