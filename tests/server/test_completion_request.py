from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from engine.tokenizer import Tokenizer
from server.completion_request import encode_prompt, read_completion, read_prompts


def test_prompt_gets_one_bos(tokenizer: Any) -> None:
    bos = tokenizer.bos_id
    assert encode_prompt("", tokenizer).token_ids == [bos]
    added = encode_prompt("a", tokenizer)
    assert added.added_bos
    assert added.token_ids[0] == bos
    written = encode_prompt("<｜begin▁of▁sentence｜>a", tokenizer)
    assert not written.added_bos
    assert written.token_ids == added.token_ids


def test_forms(tokenizer: Any) -> None:
    assert len(read_prompts("a", tokenizer)) == 1
    assert len(read_prompts(["a", "b"], tokenizer)) == 2
    assert [p.token_ids for p in read_prompts([5, 6], tokenizer)] == [[5, 6]]
    assert [p.token_ids for p in read_prompts([[5], [6, 7]], tokenizer)] == [[5], [6, 7]]
    assert read_prompts([], tokenizer)[0].token_ids == [tokenizer.bos_id]
    assert read_prompts([[]], tokenizer)[0].token_ids == [tokenizer.bos_id]
    with pytest.raises(RequestError, match="at most 4096"):
        read_prompts(["a"] * 4097, tokenizer)


@pytest.mark.parametrize(
    ("body", "logprobs", "prompt_logprobs", "max_tokens"),
    [
        ({}, None, None, 16),
        ({"logprobs": 3}, 3, None, 16),
        ({"logprobs": 3, "echo": True}, 3, 3, 16),
        ({"echo": True}, None, None, 16),
        ({"echo": True, "max_tokens": 0}, None, 0, 0),
        ({"logprobs": 0, "echo": True, "max_tokens": 0}, 0, 0, 0),
    ],
)
def test_logprobs_wanted(
    engine_class: Any, body: Any, logprobs: Any, prompt_logprobs: Any, max_tokens: int
) -> None:
    wanted = read_completion({"prompt": "ab", **body}, engine_class())
    params = wanted.choices[0].params
    assert (params.logprobs, params.prompt_logprobs) == (logprobs, prompt_logprobs)
    assert params.max_tokens == max_tokens


def test_choices_in_order(engine_class: Any) -> None:
    wanted = read_completion({"prompt": ["a", "b"], "n": 2, "seed": 5}, engine_class())
    assert [choice.index for choice in wanted.choices] == [0, 1, 2, 3]
    assert [choice.params.seed for choice in wanted.choices] == [5, 6, 5, 6]
    assert [wanted.prompt_of(choice) for choice in wanted.choices] == [
        wanted.prompts[0],
        wanted.prompts[0],
        wanted.prompts[1],
        wanted.prompts[1],
    ]


def test_best_of_equal_to_n(engine_class: Any) -> None:
    assert read_completion({"prompt": "a", "n": 2, "best_of": 2}, engine_class()).n == 2


@pytest.mark.parametrize("as_list", [False, True])
def test_a_text_that_cannot_fit_is_not_encoded(
    engine_class: Any, monkeypatch: pytest.MonkeyPatch, as_list: bool
) -> None:
    engine = engine_class(max_model_len=100)
    monkeypatch.setattr(Tokenizer, "encode_markup", None)
    text = "a" * (100 * engine.tokenizer.longest_token + 1)
    with pytest.raises(RequestError, match="at least 101 tokens") as caught:
        read_completion({"prompt": [text] if as_list else text}, engine)
    assert caught.value.code == "context_length_exceeded"
