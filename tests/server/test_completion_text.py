from __future__ import annotations

import random
from typing import Any

import pytest

from engine.request import TokensEvent
from server.completion_text import CompletionPiece, CompletionText


def run(tokenizer: Any, logprobs: Any, text: str, stops: list[str], sizes: Any) -> CompletionPiece:
    ids = tokenizer.encode_text(text)
    completion = CompletionText(tokenizer, stops, with_logprobs=True)
    whole, start = CompletionPiece(), 0
    while start < len(ids) and not completion.stopped:
        group = tuple(ids[start : start + next(sizes)])
        start += len(group)
        piece = completion.feed(TokensEvent(group, tuple(logprobs(token, 1) for token in group)))
        whole.text += piece.text
        whole.tokens += piece.tokens
    last = completion.finish()
    return CompletionPiece(whole.text + last.text, whole.tokens + last.tokens)


@pytest.mark.parametrize("stops", [[], ["lo w"], ["zz", "é"], ["\n\n", "d é 世"], ["never"]])
def test_every_cut_gives_the_same(tokenizer: Any, fake_scores: Any, stops: list[str]) -> None:
    text = "Hello world é 世界\n\nend"
    rng = random.Random(1)
    expected = min([text.find(stop) for stop in stops if stop in text], default=len(text))
    results = []
    for _ in range(30):
        sizes = iter(lambda: rng.randint(1, 4), 0)
        piece = run(tokenizer, fake_scores, text, stops, sizes)
        assert piece.text == text[:expected]
        results.append([(token.label, token.offset) for token in piece.tokens])
    assert all(result == results[0] for result in results)
    assert all(offset < max(1, expected) for _, offset in results[0])


def test_cut_character_at_the_end(tokenizer: Any, fake_scores: Any) -> None:
    ids = tokenizer.encode_text("aé")[:2]
    completion = CompletionText(tokenizer, [], with_logprobs=False)
    assert completion.feed(TokensEvent(tuple(ids), None)).text == "a"
    assert completion.finish().text == "�"


def test_echo_hides_an_added_bos_only(tokenizer: Any, fake_scores: Any) -> None:
    ids = [tokenizer.bos_id, *tokenizer.encode_text("ab")]
    scores = [None, *(fake_scores(token, 1) for token in ids[1:])]
    hidden = CompletionText(tokenizer, [], with_logprobs=True).echo(ids, scores, hide_first=True)
    assert hidden.text == "ab"
    assert [(t.label, t.logprob) for t in hidden.tokens] == [("a", None), ("b", -0.125)]
    shown = CompletionText(tokenizer, [], with_logprobs=True).echo(ids, scores, hide_first=False)
    assert shown.text == "ab"
    assert [(t.logprob, t.offset) for t in shown.tokens] == [(None, 0), (-0.125, 0), (-0.125, 1)]
