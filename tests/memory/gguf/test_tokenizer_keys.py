from __future__ import annotations

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf.keys import KeyReader
from memory.gguf.tokenizer_keys import read_tokenizer_size, read_vocab_size


def reader(**changes: object) -> KeyReader:
    values: dict[str, object] = {
        "model": "gpt2",
        "tokens": ["a", "b", "c"],
        "token_type": np.array([3, 1, 1], np.int32),
        "merges": ["a b"],
        "bos_token_id": 0,
        "eos_token_id": 2,
    } | changes
    metadata = {f"tokenizer.ggml.{k}": v for k, v in values.items() if v is not None}
    return KeyReader("f.gguf", metadata, "arch")


def test_size() -> None:
    assert read_tokenizer_size(reader()) == 3
    assert read_tokenizer_size(reader(token_type=None, mask_token_id=2)) == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokens": np.arange(3)}, "tokens"),
        ({"tokens": ["a", ["b"], "c"]}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"merges": "a b"}, "merges"),
        ({"token_type": np.ones(2, np.int32)}, "token_type"),
        ({"token_type": np.ones(3)}, "token_type"),
        ({"token_type": 3}, "token_type"),
        ({"bos_token_id": 3}, "bos_token_id"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eos_token_id": None}, "eos_token_id"),
        ({"padding_token_id": 3}, "padding_token_id"),
        ({"mask_token_id": 2.0}, "mask_token_id"),
    ],
)
def test_what_does_not_fit(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_tokenizer_size(reader(**changes))
    assert caught.value.field == f"tokenizer.ggml.{field}"


def test_vocabulary_size() -> None:
    keys = KeyReader("f.gguf", {"arch.vocab_size": 7}, "arch")
    assert read_vocab_size(keys, 7, 0) == 7 and read_vocab_size(keys, 0, 9) == 7
    with pytest.raises(ModelFileError, match="7, but the tokenizer has 8"):
        read_vocab_size(keys, 8, 0)
    none = KeyReader("f.gguf", {}, "arch")
    assert read_vocab_size(none, 5, 9) == 5 and read_vocab_size(none, 0, 9) == 9
