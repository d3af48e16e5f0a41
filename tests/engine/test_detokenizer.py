from __future__ import annotations

import random

import pytest

from engine.detokenizer import Detokenizer, TokenStream, byte_alphabet


def test_byte_alphabet() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert all(char.isprintable() and not char.isspace() for char in alphabet)
    assert (alphabet[ord("a")], alphabet[ord(" ")], alphabet[ord("\n")]) == ("a", "Ġ", "Ċ")


@pytest.fixture
def detokenizer() -> Detokenizer:
    """Ids 0..255 are the bytes, 256 is a longer token, 257 a marker."""
    return Detokenizer([*byte_alphabet(), "Ġthe", "<｜é｜>"], markers=[257])


def test_bytes_of_single_tokens(detokenizer: Detokenizer) -> None:
    assert [detokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert detokenizer.token_bytes(256) == b" the"
    assert detokenizer.token_bytes(257) == "<｜é｜>".encode()


@pytest.mark.parametrize("token_id", [-1, 258])
def test_unknown_id(detokenizer: Detokenizer, token_id: int) -> None:
    with pytest.raises(IndexError, match=r"outside 0\.\.257"):
        detokenizer.token_bytes(token_id)


def test_stream_joins_to_decode_for_any_bytes(detokenizer: Detokenizer) -> None:
    rng = random.Random(11)
    sample = "aé日🦀\u0301".encode()
    for _ in range(500):
        ids = [
            rng.choice([rng.randrange(258), sample[rng.randrange(len(sample))]])
            for _ in range(rng.randrange(20))
        ]
        stream = TokenStream(detokenizer)
        pieces = [stream.feed(token_id) for token_id in ids]
        assert "".join(pieces) + stream.flush() == detokenizer.decode(ids)


def test_stream_never_splits_a_character(detokenizer: Detokenizer) -> None:
    text = "aé日🦀"
    stream = TokenStream(detokenizer)
    pieces = [stream.feed(byte) for byte in text.encode()]
    assert [piece for piece in pieces if piece] == list(text)
    assert stream.flush() == ""
    stream.feed("🦀".encode()[0])
    assert stream.flush() == "\ufffd"


def test_silent_ids_give_no_text(detokenizer: Detokenizer) -> None:
    stream = TokenStream(detokenizer, silent=frozenset({257}))
    first, second = "é".encode()
    assert [stream.feed(token_id) for token_id in (first, 257, second)] == ["", "", "é"]
