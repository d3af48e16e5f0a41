from __future__ import annotations

import pytest

from server.chat.markup import (
    BY_ID,
    IN_TEXT,
    MAX_ATTRIBUTE,
    MAX_NAME,
    UNDECIDED,
    Kind,
    Tag,
    TagMatcher,
)

D = "｜DSML｜"
MATCHER = TagMatcher(IN_TEXT)
WHOLE = [
    (f"<{D} calls>", Kind.CALLS_OPEN, "", None),
    (f"<{D}tool_calls>", Kind.CALLS_OPEN, "", None),
    (f"<{D} function_calls>", Kind.CALLS_OPEN, "", None),
    (f"</{D} calls>", Kind.CALLS_CLOSE, "", None),
    (f'<{D} invoke name="f">', Kind.INVOKE_OPEN, "f", None),
    (f'<{D}invoke name="a b" >', Kind.INVOKE_OPEN, "a b", None),
    (f"</{D} invoke>", Kind.INVOKE_CLOSE, "", None),
    (f'<{D} parameter name="" string="true">', Kind.PARAMETER_OPEN, "", True),
    (f'<{D} parameter string="false" name="x\ny=">', Kind.PARAMETER_OPEN, "x\ny=", False),
    (f'<{D} parameter name="x" extra="1">', Kind.PARAMETER_OPEN, "x", None),
    (f"</{D}parameter>", Kind.PARAMETER_CLOSE, "", None),
]


@pytest.mark.parametrize(("text", "kind", "name", "is_text"), WHOLE)
def test_whole_tag_and_all_its_prefixes(
    text: str, kind: Kind, name: str, is_text: bool | None
) -> None:
    assert MATCHER.match(f"x{text}y", 1, set(Kind)) == Tag(kind, len(text) + 1, name, is_text)
    assert MATCHER.match(text, 0, {kind}) == Tag(kind, len(text), name, is_text)
    assert MATCHER.match(text, 0, set(Kind) - {kind}) is None
    for stop in range(1, len(text)):
        assert MATCHER.match(text[:stop], 0, set(Kind)) is UNDECIDED


@pytest.mark.parametrize(
    "text",
    [
        "<x",
        f"<{D}  ",
        f"<{D} call>",
        f"<{D} invoke>",
        f"<{D} invoke nam='",
        f'<{D} invoke name="">',
        f'<{D} invoke name="a\n',
        f'<{D} invoke name="{"x" * (MAX_NAME + 1)}',
        f'<{D} invoke name="f"x',
        f'<{D} invoke other="f">',
        f"<{D} invoke {'x' * 40}",
        f'<{D} parameter string="true">',
        f'<{D} parameter name="{"x" * (MAX_ATTRIBUTE + 1)}',
        f"<{D} parameter " + 'a="" ' * 9,
    ],
)
def test_no_tag(text: str) -> None:
    assert MATCHER.match(text, 0, set(Kind)) is None


def test_longest_names() -> None:
    for head, kind, limit in (
        (f'<{D} invoke name="', Kind.INVOKE_OPEN, MAX_NAME),
        (f'<{D} parameter name="', Kind.PARAMETER_OPEN, MAX_ATTRIBUTE),
    ):
        name = "x" * limit
        tag = MATCHER.match(f'{head}{name}">', 0, {kind})
        assert isinstance(tag, Tag) and tag.name == name


def test_dialect_by_id_knows_only_stand_ins() -> None:
    matcher = TagMatcher(BY_ID)
    assert matcher.match(f"<{D} calls>", 0, set(Kind)) is None
    tag = matcher.match(f'<{BY_ID.dsml} invoke name="{BY_ID.think_open}">', 0, set(Kind))
    assert isinstance(tag, Tag) and tag.name == "<think>"
    everything = BY_ID.dsml + BY_ID.think_open + BY_ID.think_close
    assert BY_ID.restore(everything) == f"{D}<think></think>"


def test_spellings() -> None:
    assert MATCHER.spellings(Kind.INVOKE_CLOSE) == (f"</{D} invoke>", f"</{D}invoke>")
