from __future__ import annotations

import json
from typing import Any

from engine.request import TokenLogprobs
from server.logprobs import (
    FLOOR,
    chat_entry,
    completion_logprobs,
    finite,
    scored_token,
    token_label,
)


def test_minus_infinity_becomes_json() -> None:
    assert finite(float("-inf")) == FLOOR
    assert finite(-1.5) == -1.5
    json.dumps(finite(float("-inf")), allow_nan=False)


def test_labels(tokenizer: Any) -> None:
    first, second = tokenizer.encode_text("é")
    assert token_label(tokenizer, first) == "bytes:\\xc3"
    assert token_label(tokenizer, second) == "bytes:\\xa9"
    assert token_label(tokenizer, tokenizer.encode_text("a")[0]) == "a"
    assert token_label(tokenizer, tokenizer.bos_id) == "<｜begin▁of▁sentence｜>"


def test_chat_entry(tokenizer: Any) -> None:
    a, b = tokenizer.encode_text("ab")
    part = tokenizer.encode_text("é")[0]
    entry = chat_entry(tokenizer, part, TokenLogprobs(-0.5, ((a, -0.25), (b, float("-inf")))))
    assert entry == {
        "token": "�",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [
            {"token": "a", "logprob": -0.25, "bytes": [97]},
            {"token": "b", "logprob": FLOOR, "bytes": [98]},
        ],
    }


def test_completion_logprobs(tokenizer: Any) -> None:
    a, b, c = tokenizer.encode_text("abc")
    tokens = [
        scored_token(tokenizer, a, None, 0),
        scored_token(tokenizer, b, TokenLogprobs(-2.0, ((c, -0.5),)), 1),
    ]
    assert completion_logprobs(tokens) == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"c": -0.5, "b": -2.0}],
        "text_offset": [0, 1],
    }
