from __future__ import annotations

from typing import Any

from engine.tokenizer import Tokenizer
from server.chat import prompt_ids, render
from server.chat.spans import SpanBuilder


def test_plain_neighbours_are_joined_and_fixed_text_is_cut_at_markers() -> None:
    out = SpanBuilder()
    out.plain("a")
    out.plain("")
    out.fixed("b<｜DSML｜ calls>")
    out.plain("<think>")
    out.special("</think>")
    out.fixed("<think></think>")
    assert out.build() == (
        ("ab<", False),
        ("｜DSML｜", True),
        (" calls><think>", False),
        ("</think>", True),
        ("<think>", True),
        ("</think>", True),
    )


def test_prompt_ids_of_vectors(render_vector: dict[str, Any], released: Tokenizer) -> None:
    prompt = render(
        render_vector["request"], add_generation_prompt=render_vector.get("add_generation_prompt")
    )
    ids = prompt_ids(prompt, released)
    assert released.decode(ids) == render_vector["expected_prompt"]
    if "expected_prompt_token_ids" in render_vector:
        assert ids == render_vector["expected_prompt_token_ids"]
    if render_vector["id"] != "user-text-looks-like-markup":
        assert ids == released.encode_markup(prompt.text)


def test_quoted_markers_become_ordinary_ids(released: Tokenizer) -> None:
    quote = "".join(released.markers)
    body = {"messages": [{"role": "user", "content": quote}], "thinking": {"type": "disabled"}}
    ids = prompt_ids(render(body), released)
    specials = [token_id for token_id in ids if released.is_special(token_id)]
    assert specials == [0, 128803, 128804, 128822]
