from __future__ import annotations

import random
from typing import Any

import pytest

from server.answer_logprobs import AnswerLogprobs


def play(steps: list[tuple[str, str]]) -> list[str]:
    """(token text, answer text released with it) -> labels of the tokens chosen."""
    answer = AnswerLogprobs()
    chosen: list[dict[str, Any]] = []
    for i, (token, content) in enumerate(steps):
        answer.add_token(token, {"token": f"{i}:{token}"})
        if content:
            chosen += answer.add_content(content)
    chosen += answer.finish()
    return [entry["token"] for entry in chosen]


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ([("a", "a"), ("b", "b")], ["0:a", "1:b"]),
        ([("a", ""), ("b", "ab")], ["0:a", "1:b"]),
        ([("\n\n", ""), ("Hi", "Hi")], ["1:Hi"]),
        ([("\n\nHi", "Hi"), ("!", "!")], ["0:\n\nHi", "1:!"]),
        ([("", ""), ("é", "é"), ("x", "x")], ["0:", "1:é", "2:x"]),
        ([("Hi<", "Hi"), ("b", "<b")], ["0:Hi<", "1:b"]),
        ([("one", "one"), (" EN", " "), ("D", "")], ["0:one", "1: EN"]),
        ([("text", "text"), ("\n\n", ""), ("<", ""), ("calls", "")], ["0:text"]),
        ([("</s>", ""), ("a", "a"), ("", "")], ["1:a"]),
    ],
)
def test_cases(steps: list[tuple[str, str]], chosen: list[str]) -> None:
    assert play(steps) == chosen


def test_any_delay_gives_all_tokens() -> None:
    rng = random.Random(3)
    for _ in range(200):
        tokens = ["".join(rng.choice("ab\n") for _ in range(rng.randint(1, 3))) for _ in range(12)]
        steps, held = [], ""
        for token in tokens:
            held += token
            sent = rng.randint(0, len(held))
            steps.append((token, held[:sent]))
            held = held[sent:]
        if held:
            steps[-1] = (steps[-1][0], steps[-1][1] + held)
        assert play(steps) == [f"{i}:{token}" for i, token in enumerate(tokens)]
