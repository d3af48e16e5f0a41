"""Check the tokenizer's keys as far as the model depends on them: sizes and special ids."""

from __future__ import annotations

import numpy as np

from memory.gguf.keys import KeyReader

MAX_VOCAB = 1 << 24
TOKENIZER_KEYS = (
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
)


def read_tokenizer_size(keys: KeyReader) -> int:
    """Return the number of tokens and check the tokenizer's keys against it.

    Raises:
        ModelFileError: lengths or ids do not fit the vocabulary.
    """
    for name in ("tokens", "merges"):
        value = keys.get(f"tokenizer.ggml.{name}")
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise keys.fail(f"tokenizer.ggml.{name}", "not an array of strings")
    tokens = keys.get("tokenizer.ggml.tokens")
    assert isinstance(tokens, list)
    if not tokens:
        raise keys.fail("tokenizer.ggml.tokens", "the vocabulary is empty")
    kinds = keys.get("tokenizer.ggml.token_type", np.zeros(len(tokens), np.int32))
    if (
        not isinstance(kinds, np.ndarray)
        or kinds.dtype.kind not in "iu"
        or kinds.size != len(tokens)
    ):
        raise keys.fail(
            "tokenizer.ggml.token_type", f"not an array of {len(tokens)} integers, one per token"
        )
    for name in ("bos", "eos"):
        keys.integer(f"tokenizer.ggml.{name}_token_id", 0, len(tokens) - 1)
    for name in ("padding", "unknown", "mask", "eot"):
        if keys.has(f"tokenizer.ggml.{name}_token_id"):
            keys.integer(f"tokenizer.ggml.{name}_token_id", 0, len(tokens) - 1)
    return len(tokens)


def read_vocab_size(keys: KeyReader, tokens: int, fallback: int) -> int:
    """Return the vocabulary size and check that it equals the tokenizer's.

    Args:
        keys: the file's keys.
        tokens: number of tokens of the tokenizer, 0 if there is none.
        fallback: size if there is neither key nor tokenizer.

    Raises:
        ModelFileError: the two differ.
    """
    size = keys.integer("vocab_size", 1, MAX_VOCAB, tokens or fallback or 1)
    if tokens and size != tokens:
        raise keys.fail("vocab_size", f"{size}, but the tokenizer has {tokens} tokens")
    return size
