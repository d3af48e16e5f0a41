"""The model's tokenizer, built from GGUF metadata.

Byte-level BPE with DeepSeek's pre-tokenizer: three isolated splits, then bytes; no normaliser, no
unknown token. A chat prompt is a list of spans: explicit markers and plain text. Plain text is
encoded without the added vocabulary, so that a marker typed by a user becomes ordinary tokens and
cannot open a turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from engine.detokenizer import Detokenizer, TokenStream, byte_alphabet
from engine.vocabulary import (
    ASSISTANT,
    BOS,
    CONTROL,
    DSML,
    EOS,
    LATEST_REMINDER,
    PAD,
    REQUIRED_MARKERS,
    SYSTEM,
    THINK_CLOSE,
    THINK_OPEN,
    UNUSED,
    USER,
    USER_DEFINED,
    Vocabulary,
    read_vocabulary,
)

__all__ = [
    "ASSISTANT",
    "BOS",
    "DSML",
    "EOS",
    "LATEST_REMINDER",
    "PAD",
    "REQUIRED_MARKERS",
    "SYSTEM",
    "THINK_CLOSE",
    "THINK_OPEN",
    "USER",
    "Tokenizer",
    "replace_surrogates",
]

RELEASED_SIZE = 129280
"""Vocabulary size of DeepSeek-V4.1-Flash."""
RELEASED_DSML_ID = 128825
RELEASED_IMAGE_IDS = (*range(128847, 129265), 129279)
"""Image placeholders of the released vocabulary: input side only, never sampled."""

_DIGITS = r"\p{N}{1,3}"
_CJK_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def replace_surrogates(text: str) -> str:
    """Join surrogate pairs and put U+FFFD for lone surrogates, which have no UTF-8 form."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Tokenizer:
    """Text to token ids and back; build it with `from_metadata`.

    Thread-safe: nothing changes after construction.

    Attributes:
        vocab_size: number of ids.
        bos_id, eos_id, pad_id: begin of sentence, end of sentence, padding.
        stop_ids: ids that end a generation: end of sentence, and the markers that would open a
            new turn (begin of sentence, system, user, assistant).
        suppressed_ids: ids that must never be sampled, ascending: the image placeholders if this
            is the released vocabulary, and every id that the file marks as unused.
        markers: text -> id of every token that `encode_markup` recognises.
        longest_token: most characters of text that one token can stand for.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens, token_types = vocabulary.tokens, vocabulary.token_types
        bos_id, eos_id, pad_id = vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id
        merges = vocabulary.merges
        alphabet = frozenset(byte_alphabet())
        self.vocab_size = len(tokens)
        self.longest_token = max(map(len, tokens))  # the byte alphabet has a character per byte
        self.bos_id, self.eos_id, self.pad_id = bos_id, eos_id, pad_id
        # Some files flag markers as normal tokens. The known ones are taken by name; any other
        # with a character outside the byte alphabet could not come out of the merges anyway.
        self.markers: Mapping[str, int] = {
            text: i
            for i, (text, kind) in enumerate(zip(tokens, token_types, strict=True))
            if kind in (CONTROL, USER_DEFINED)
            or text in REQUIRED_MARKERS
            or (kind != UNUSED and not alphabet.issuperset(text))
        }
        unused = [i for i, kind in enumerate(token_types) if kind == UNUSED]
        self._special_ids = frozenset(self.markers.values())
        self._detokenizer = Detokenizer(tokens, self._special_ids.union(unused))
        turn_markers = (self.markers[text] for text in (BOS, EOS, SYSTEM, USER, ASSISTANT))
        self.stop_ids: frozenset[int] = frozenset((*turn_markers, eos_id, bos_id))
        images = RELEASED_IMAGE_IDS if self.is_released else ()
        self.suppressed_ids: tuple[int, ...] = tuple(sorted({*unused, *images}))
        self._silent_ids = self.stop_ids | {pad_id}
        vocab = {text: i for i, text in enumerate(tokens)}
        self._plain = _fast_tokenizer(vocab, merges)
        self._marked = _fast_tokenizer(vocab, merges)
        self._marked.add_tokens(
            [
                AddedToken(text, normalized=False, special=token_types[i] == CONTROL)
                for text, i in self.markers.items()
            ]
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], source: str = "") -> Tokenizer:
        """Build from GGUF key/value pairs.

        Args:
            metadata: GGUF key -> Python value; arrays as lists or numpy arrays.
            source: file name for error messages.

        Raises:
            ModelFileError: a key is missing or its value does not fit the others.
        """
        return cls(read_vocabulary(metadata, source or "GGUF metadata"))

    @property
    def is_released(self) -> bool:
        """Whether this is the vocabulary of the released model, whose ids are known."""
        return self.vocab_size == RELEASED_SIZE and self.markers.get(DSML) == RELEASED_DSML_ID

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; markers in it become ordinary tokens. No BOS is added."""
        return _encode(self._plain, text)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of text in which markers count as markers. No BOS is added."""
        return _encode(self._marked, text)

    def encode_spans(self, spans: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of a prompt given as `(text, is_special)` pairs.

        Neighbouring plain spans are joined before encoding, so the cut between them has no effect.

        Raises:
            KeyError: a special span is not one marker of this vocabulary.
        """
        ids: list[int] = []
        plain: list[str] = []
        for text, is_special in spans:
            if not is_special:
                plain.append(text)
                continue
            if plain:
                ids += self.encode_text("".join(plain))
                plain.clear()
            ids.append(self.markers[text])
        if plain:
            ids += self.encode_text("".join(plain))
        return ids

    def special_id(self, text: str) -> int | None:
        """Id of a marker by its exact text, or None."""
        return self.markers.get(text)

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a marker rather than text."""
        return token_id in self._special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token; a marker gives its own text.

        Raises:
            IndexError: no such id.
        """
        return self._detokenizer.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """Text of one token; a part of a character shows as U+FFFD.

        Raises:
            IndexError: no such id.
        """
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of a whole sequence, markers included.

        Raises:
            IndexError: no such id.
        """
        return self._detokenizer.decode(token_ids)

    def stream(self) -> TokenStream:
        """Decoder for one generated sequence; stop ids and padding give no text."""
        return TokenStream(self._detokenizer, self._silent_ids)


def _encode(tokenizer: FastTokenizer, text: str) -> list[int]:
    """Ids of one text.

    The batch call is the one that lets other threads run: `encode` holds the interpreter lock, so
    that a prompt of megabytes would stop every other answer.
    """
    texts = [replace_surrogates(text)]
    return list(tokenizer.encode_batch_fast(texts, add_special_tokens=False)[0].ids)


def _fast_tokenizer(vocab: dict[str, int], merges: Sequence[tuple[str, str]]) -> FastTokenizer:
    """Byte-level BPE with DeepSeek's pre-tokenizer and no added vocabulary."""
    fast = FastTokenizer(
        models.BPE(vocab=vocab, merges=list(merges), fuse_unk=False, byte_fallback=False)
    )
    splits = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        for pattern in (_DIGITS, _CJK_AND_KANA, _WORDS)
    ]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    fast.decoder = decoders.ByteLevel()
    return fast
