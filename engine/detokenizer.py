"""Bytes and text of single tokens, and text of a token stream as it grows.

Byte-level BPE writes every byte of a token as one printable character. This module turns tokens
back into exact bytes and decodes a stream of tokens without ever splitting a UTF-8 character.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence


def byte_alphabet() -> tuple[str, ...]:
    """The printable stand-in of each byte 0..255 in a byte-level BPE vocabulary (GPT-2's map).

    Printable Latin-1 characters stand for themselves; the other 68 bytes take the characters from
    U+0100 on, in order.
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return tuple(chr(byte if byte in plain else next(shifted)) for byte in range(256))


_TO_BYTE = {ord(char): chr(byte) for byte, char in enumerate(byte_alphabet())}


class Detokenizer:
    """Token ids to exact bytes and text.

    Args:
        tokens: text of every token in the vocabulary file, index = id.
        markers: ids whose text is meant literally; all others are in the byte alphabet.
    """

    def __init__(self, tokens: Sequence[str], markers: Collection[int]) -> None:
        self._tokens = tokens
        self._markers = frozenset(markers)

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token; a marker gives its own text in UTF-8.

        Raises:
            IndexError: no such id.
        """
        if not 0 <= token_id < len(self._tokens):
            raise IndexError(f"token id {token_id} is outside 0..{len(self._tokens) - 1}")
        text = self._tokens[token_id]
        if token_id in self._markers:
            return text.encode("utf-8")
        return text.translate(_TO_BYTE).encode("latin-1")

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of a whole sequence; bytes that are not UTF-8 become U+FFFD.

        Raises:
            IndexError: no such id.
        """
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")


class TokenStream:
    """Incremental decoder of one generated sequence.

    The pieces of `feed` and the rest from `flush` join to exactly what `Detokenizer.decode` gives
    for the same ids without the silent ones.

    Args:
        detokenizer: gives the bytes.
        silent: ids that produce no text (end of sentence and turn markers).
    """

    def __init__(self, detokenizer: Detokenizer, silent: frozenset[int] = frozenset()) -> None:
        self._detokenizer = detokenizer
        self._silent = silent
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """Text that became certain with this token; "" while a character is incomplete.

        Raises:
            IndexError: no such id.
        """
        if token_id in self._silent:
            return ""
        return self._decoder.decode(self._detokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The end of the text: U+FFFD if the sequence ended inside a character, else ""."""
        return self._decoder.decode(b"", final=True)
