from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.stop import StopMatcher


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Whole-text search: the first end wins, then the longest string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    sent = "".join(matcher.feed(piece)[0] for piece in pieces)
    return sent + matcher.flush(), matcher.hit


@given(
    pieces=st.lists(st.text(alphabet="abc", max_size=5), max_size=12),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=6), max_size=4),
)
@settings(max_examples=400, deadline=None)
def test_pieces_equal_whole_text(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == reference("".join(pieces), stops)


def test_every_split_in_two_and_three() -> None:
    text, stops = "one aabaabaab two\n\nUser: three", ["aabaab two", "\n\nUser:", "User: th"]
    expected = reference(text, stops)
    assert expected == ("one aab", "aabaab two")
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            assert run([text[:i], text[i:j], text[j:]], stops) == expected


def test_holds_back_only_what_may_match() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("go ST") == ("go ", None)
    assert matcher.feed("A") == ("STA", None)
    assert matcher.feed("SSTO") == ("S", None)
    assert matcher.feed("P rest") == ("", "STOP")
    assert matcher.feed("more") == ("", "STOP")
    assert matcher.flush() == ""


def test_first_complete_string_wins_over_one_that_began_earlier() -> None:
    assert run(["xabcdy"], ["abcd", "bc"]) == ("xa", "bc")


def test_longest_of_strings_that_end_together() -> None:
    assert run(list("xabc"), ["bc", "abc", "c"]) == ("x", "abc")


def test_flush_returns_an_unfinished_match() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("the EN") == ("the ", None)
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""
    assert matcher.feed("D") == ("D", None)


def test_unicode() -> None:
    stops = ["终了", "🙂🙃", "é"]
    assert run(["ok 终", "了 x"], stops) == ("ok ", "终了")
    assert run(["a🙂", "🙂", "🙃b"], stops) == ("a🙂", "🙂🙃")
    assert run(["cafe\u0301"], stops) == ("cafe\u0301", None)  # another spelling is another text


def test_no_stop_strings_pass_everything_at_once() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("text") == ("text", None)
    assert matcher.flush() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])


def test_long_repetitive_strings_stay_linear() -> None:
    matcher = StopMatcher(["a" * 20_000 + "b"])
    started = time.perf_counter()
    for _ in range(2_000):
        assert matcher.feed("a" * 15)[1] is None
    assert time.perf_counter() - started < 5
    assert matcher.feed("b") == ("", "a" * 20_000 + "b")
