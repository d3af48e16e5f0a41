"""The model's tokenizer, built from GGUF metadata.

Byte-level BPE with DeepSeek's pre-tokenizer: three isolated splits, then bytes; no normaliser, no
unknown token. A chat prompt is a list of spans: explicit markers and plain text. Plain text is
encoded without the added vocabulary, so that a marker typed by a user becomes ordinary tokens and
cannot open a turn.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from engine.detokenizer import Detokenizer, TokenStream, byte_alphabet
from engine.errors import ModelFileError

log = logging.getLogger(__name__)

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
DSML = "｜DSML｜"
LATEST_REMINDER = "<｜latest_reminder｜>"

REQUIRED_MARKERS = (
    BOS,
    EOS,
    SYSTEM,
    USER,
    ASSISTANT,
    THINK_OPEN,
    THINK_CLOSE,
    DSML,
    LATEST_REMINDER,
)
"""Markers without which no chat prompt can be written."""

KNOWN_PRE = ("joyai-llm", "deepseek-v3", "hunyuan-dense")
"""Names under which GGUF files carry this pre-tokenizer."""

RELEASED_SIZE = 129280
"""Vocabulary size of DeepSeek-V4.1-Flash."""
RELEASED_DSML_ID = 128825
RELEASED_IMAGE_IDS = (*range(128847, 129265), 129279)
"""Image placeholders of the released vocabulary: input side only, never sampled."""

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

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
    """

    def __init__(
        self,
        tokens: Sequence[str],
        token_types: Sequence[int],
        merges: Sequence[tuple[str, str]],
        *,
        bos_id: int,
        eos_id: int,
        pad_id: int,
    ) -> None:
        alphabet = frozenset(byte_alphabet())
        self.vocab_size = len(tokens)
        self.bos_id, self.eos_id, self.pad_id = bos_id, eos_id, pad_id
        # Some files flag markers as normal tokens. The known ones are taken by name; any other
        # with a character outside the byte alphabet could not come out of the merges anyway.
        self.markers: Mapping[str, int] = {
            text: i
            for i, (text, kind) in enumerate(zip(tokens, token_types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
            or text in REQUIRED_MARKERS
            or (kind == _NORMAL and not alphabet.issuperset(text))
        }
        unused = [i for i, kind in enumerate(token_types) if kind == _UNUSED]
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
                AddedToken(text, normalized=False, special=token_types[i] == _CONTROL)
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
        return cls(**_checked(metadata, source or "GGUF metadata"))

    @property
    def is_released(self) -> bool:
        """Whether this is the vocabulary of the released model, whose ids are known."""
        return self.vocab_size == RELEASED_SIZE and self.markers.get(DSML) == RELEASED_DSML_ID

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text; markers in it become ordinary tokens. No BOS is added."""
        return list(self._plain.encode(replace_surrogates(text), add_special_tokens=False).ids)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of text in which markers count as markers. No BOS is added."""
        return list(self._marked.encode(replace_surrogates(text), add_special_tokens=False).ids)

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


def _checked(metadata: Mapping[str, object], source: str) -> dict[str, Any]:
    """Constructor arguments from metadata, or a ModelFileError that names the key."""
    prefix = "tokenizer.ggml."

    def required(name: str) -> Any:
        value = metadata.get(prefix + name)
        if value is None:
            raise ModelFileError(source, prefix + name, "missing; the tokenizer needs it")
        return value

    model = required("model")
    if model != "gpt2":
        raise ModelFileError(source, prefix + "model", f"found {model!r}, needed 'gpt2'")
    pre = metadata.get(prefix + "pre")
    if pre not in KNOWN_PRE:
        log.warning(
            "%s: tokenizer.ggml.pre is %r; DeepSeek's rule (%s) is used",
            source,
            pre,
            KNOWN_PRE[0],
        )
    tokens = [str(token) for token in required("tokens")]
    types = [int(kind) for kind in required("token_type")]
    if len(types) != len(tokens):
        raise ModelFileError(
            source, prefix + "token_type", f"{len(types)} values for {len(tokens)} tokens"
        )
    vocab = {text: i for i, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(text for i, text in enumerate(tokens) if vocab[text] != i)
        raise ModelFileError(source, prefix + "tokens", f"token {twice!r} occurs twice")
    missing = [char for char in byte_alphabet() if char not in vocab]
    if missing:
        raise ModelFileError(
            source,
            prefix + "tokens",
            f"{len(missing)} of 256 byte tokens are missing, first {missing[0]!r}",
        )
    absent = [text for text in REQUIRED_MARKERS if text not in vocab]
    if absent:
        hint = " (a DeepSeek-V4 vocabulary? V4.1 is needed)" if absent == [SYSTEM] else ""
        raise ModelFileError(
            source, prefix + "tokens", f"marker {', '.join(absent)} is missing{hint}"
        )
    return {
        "tokens": tokens,
        "token_types": types,
        "merges": _merges(required("merges"), vocab, source, prefix + "merges"),
        "bos_id": _token_id(metadata, prefix + "bos_token_id", vocab[BOS], len(tokens), source),
        "eos_id": _token_id(metadata, prefix + "eos_token_id", vocab[EOS], len(tokens), source),
        "pad_id": _token_id(
            metadata, prefix + "padding_token_id", vocab.get(PAD, vocab[EOS]), len(tokens), source
        ),
    }


def _merges(
    lines: Iterable[object], vocab: Mapping[str, int], source: str, key: str
) -> list[tuple[str, str]]:
    """Merge pairs in rank order; one whose parts or result are not tokens can never apply."""
    merges: list[tuple[str, str]] = []
    dropped = 0
    for line in map(str, lines):
        left, space, right = line.partition(" ")
        if not (left and space and right) or " " in right:
            raise ModelFileError(source, key, f"found {line!r}, needed two parts and one space")
        if left in vocab and right in vocab and left + right in vocab:
            merges.append((left, right))
        else:
            dropped += 1
    if dropped:
        log.warning("%s: %s: %d merges of unknown tokens ignored", source, key, dropped)
    return merges


def _token_id(
    metadata: Mapping[str, object], key: str, default: int, vocab_size: int, source: str
) -> int:
    """An id-valued key, checked against the vocabulary."""
    value = metadata.get(key)
    if value is None:
        return default
    token_id = int(str(value))
    if not 0 <= token_id < vocab_size:
        raise ModelFileError(source, key, f"id {token_id} is outside 0..{vocab_size - 1}")
    return token_id
