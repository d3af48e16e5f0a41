from __future__ import annotations

import random

import pytest

from server.chat.newlines import NewlineHolder


@pytest.mark.parametrize("trim_start", [True, False])
@pytest.mark.parametrize("hold_end", [True, False])
def test_joined_text_does_not_depend_on_pieces(trim_start: bool, hold_end: bool) -> None:
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choice("\n\nab ") for _ in range(rng.randrange(12)))
        whole = text.lstrip("\n") if trim_start else text
        for drop in (True, False):
            holder = NewlineHolder(trim_start, hold_end)
            pieces, rest = [], text
            while rest:
                size = rng.randrange(1, 4)
                pieces.append(holder.push(rest[:size]))
                rest = rest[size:]
                if hold_end:
                    assert not pieces[-1].endswith("\n")
            if drop:
                holder.drop()
            joined = "".join(pieces) + holder.release()
            assert joined == (whole.rstrip("\n") if drop and hold_end else whole)


def test_release_ends_the_trimming() -> None:
    holder = NewlineHolder(trim_start=True, hold_end=True)
    assert holder.push("\n") == "" and holder.release() == ""
    assert holder.push("\nx") == "\nx"
