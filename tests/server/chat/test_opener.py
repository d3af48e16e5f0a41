from __future__ import annotations

import pytest

from server.chat.markup import IN_TEXT, UNDECIDED
from server.chat.opener import MAX_BARE_CALL, MAX_SPACE, OpenerMatcher

D = "｜DSML｜"
OPEN = f"<{D} calls>"
INVOKE = f'<{D} invoke name="f">'
CLOSE = f"</{D} invoke>"


def matcher() -> OpenerMatcher:
    return OpenerMatcher(IN_TEXT, {"f"})


@pytest.mark.parametrize("space", ["", "\n", " \n\t", " " * MAX_SPACE])
def test_block_with_an_invoke_of_any_name(space: str) -> None:
    text = f'x{OPEN}{space}<{D} invoke name="any">'
    assert matcher().match(text, 1) == 1 + len(OPEN) + len(space)
    growing = matcher()
    for stop in range(2, len(text)):
        assert growing.match(text[:stop], 1) is UNDECIDED
    assert growing.match(text, 1) is not None


@pytest.mark.parametrize(
    "text",
    [
        f"{OPEN} x",
        f"{OPEN}<b>",
        f"{OPEN}</{D} calls>",
        OPEN + " " * (MAX_SPACE + 2),
        f'<{D} invoke name="other">{CLOSE}',
        f'<{D} parameter name="x">',
        f"</{D} calls>",
    ],
)
def test_no_opener(text: str) -> None:
    found = matcher()
    assert found.match(text, 0) is None and found.malformed == 0


def test_parameter_where_an_invoke_belongs_is_counted() -> None:
    found = matcher()
    assert found.match(f'{OPEN}<{D} parameter name="x">', 0) is None
    assert found.malformed == 1


@pytest.mark.parametrize("close", [CLOSE, f"</{D}invoke>"])
def test_bare_call_needs_its_end(close: str) -> None:
    text = f"{INVOKE}abc{close}"
    found = matcher()
    for stop in range(len(INVOKE), len(text)):
        assert found.match(text[:stop], 0) is UNDECIDED
    assert found.match(text, 0) == 0


@pytest.mark.parametrize(("excess", "is_call"), [(0, True), (1, False)])
def test_bare_call_at_the_limit(excess: int, is_call: bool) -> None:
    text = INVOKE + "x" * (MAX_BARE_CALL - len(INVOKE) + excess) + CLOSE
    assert matcher().match(text, 0) == (0 if is_call else None)
    found = matcher()
    results = [found.match(text[:stop], 0) for stop in range(len(text) - 40, len(text) + 1)]
    decided = [result for result in results if result is not UNDECIDED]
    assert decided and set(decided) == {0 if is_call else None}


def test_search_goes_on_after_a_cut() -> None:
    found = matcher()
    first, second = f"{INVOKE}" + "x" * 100, f"{INVOKE}y"
    text = first + second
    assert found.match(text, 0) is UNDECIDED
    found.forget(len(first))
    assert found.match(second, 0) is UNDECIDED
    assert found.match(second + CLOSE, 0) == 0
