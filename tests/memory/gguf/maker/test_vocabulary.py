"""The made vocabulary works in the engine's tokenizer."""

from __future__ import annotations

import logging
import random

import pytest

from engine.errors import ConfigError
from engine.tokenizer import Tokenizer
from memory.gguf.maker.vocabulary import SPECIALS, byte_alphabet, made_vocabulary


def metadata(vocab_size: int) -> dict[str, object]:
    made = made_vocabulary(vocab_size)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "joyai-llm",
        "tokenizer.ggml.tokens": made.tokens,
        "tokenizer.ggml.token_type": made.token_types,
        "tokenizer.ggml.merges": made.merges,
    }


@pytest.mark.parametrize("vocab_size", [273, 290, 320, 640])
def test_text_survives(vocab_size: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = Tokenizer.from_metadata(metadata(vocab_size))
    assert caplog.records == []
    assert made.vocab_size == vocab_size
    rng = random.Random(vocab_size)
    for _ in range(50):
        text = "".join(
            chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x80, 0xD800))))
            for _ in range(20)
        )
        ids = made.encode_text(text)
        assert made.decode(ids) == text
        assert max(ids) < 3 + 256 + 24
    assert len(made.encode_text("the the the")) < 11 or vocab_size < 290


def test_markers_are_single_tokens() -> None:
    made = Tokenizer.from_metadata(metadata(640))
    for marker in SPECIALS:
        (token,) = made.encode_markup(marker)
        assert token == made.markers[marker]
        assert len(made.encode_text(marker)) > 1
    assert (made.bos_id, made.eos_id, made.pad_id) == (0, 1, 2)


def test_byte_alphabet_is_one_printable_character_for_each_byte() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert all(char.isprintable() and not char.isspace() for char in alphabet)
    assert (alphabet[ord("A")], alphabet[ord(" ")]) == ("A", "Ġ")


def test_too_small_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"vocab_size 271 is too small: .* need 272"):
        made_vocabulary(271)
