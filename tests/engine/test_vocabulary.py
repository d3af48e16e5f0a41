from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelFileError
from engine.vocabulary import DSML, SYSTEM, read_vocabulary

PREFIX = "tokenizer.ggml."

MakeMetadata = Callable[..., dict[str, Any]]


def test_lists_and_arrays_are_read_alike(tiny_metadata: MakeMetadata) -> None:
    metadata = tiny_metadata()
    arrays = {
        **metadata,
        f"{PREFIX}token_type": np.array(metadata[f"{PREFIX}token_type"], np.int32),
        f"{PREFIX}tokens": np.array(metadata[f"{PREFIX}tokens"], object),
        f"{PREFIX}eos_token_id": np.uint32(1),
    }
    vocabulary = read_vocabulary(arrays, "tiny.gguf")
    assert vocabulary == read_vocabulary(metadata, "tiny.gguf")
    assert vocabulary.merges == [("Ġ", "t"), ("Ġt", "h")]
    assert (vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id) == (0, 1, 2)


def test_merges_of_unknown_tokens_and_unknown_rules_are_reported(
    tiny_metadata: MakeMetadata,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        vocabulary = read_vocabulary(
            tiny_metadata(merges=["Ġ t", "x y"], pre="deepseek-v4"), "tiny.gguf"
        )
    assert vocabulary.merges == [("Ġ", "t")]
    assert "1 merges of unknown tokens ignored" in caplog.text
    assert "deepseek-v4" in caplog.text


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({"model": None}, "model", "missing"),
        ({"model": "llama"}, "model", "needed 'gpt2'"),
        ({"tokens": None}, "tokens", "missing"),
        ({"token_type": None}, "token_type", "missing"),
        ({"merges": None}, "merges", "missing"),
        ({"token_type": [1, 2]}, "token_type", "2 values for 268 tokens"),
        ({"merges": ["a"]}, "merges", "two parts and one space"),
        ({"merges": ["a b c"]}, "merges", "two parts and one space"),
        ({"eos_token_id": 268}, "eos_token_id", r"outside 0\.\.267"),
        ({"tokens": "text"}, "tokens", "is no array"),
        ({"tokens": [1, 2]}, "tokens", "element of type int"),
        ({"token_type": ["x"]}, "token_type", "element of type str"),
        ({"merges": 3}, "merges", "is no array"),
        ({"eos_token_id": 1.5}, "eos_token_id", "needed a token id"),
        ({"bos_token_id": -1}, "bos_token_id", r"outside 0\.\.267"),
    ],
)
def test_missing_or_inconsistent_keys(
    tiny_metadata: MakeMetadata, changes: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem) as error:
        read_vocabulary(tiny_metadata(**changes), "bad.gguf")
    assert (error.value.path, error.value.field) == ("bad.gguf", PREFIX + field)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("a", "b", "'b' occurs twice"),
        ("a", "long", "1 of 256 byte tokens are missing"),
        (SYSTEM, "<｜place▁holder▁no▁799｜>", "DeepSeek-V4 vocabulary"),
        (DSML, "x y", "marker ｜DSML｜ is missing"),
    ],
)
def test_wrong_tokens(tiny_metadata: MakeMetadata, old: str, new: str, problem: str) -> None:
    metadata = tiny_metadata()
    tokens = metadata[f"{PREFIX}tokens"]
    metadata[f"{PREFIX}tokens"] = [new if token == old else token for token in tokens]
    with pytest.raises(ModelFileError, match=problem):
        read_vocabulary(metadata, "bad.gguf")
