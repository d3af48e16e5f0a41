"""The vocabulary of a model file: its markers, and its tokens read from GGUF metadata."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.detokenizer import byte_alphabet
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

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Values of `tokenizer.ggml.token_type`."""

_PREFIX = "tokenizer.ggml."


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, their types and merges, consistent with each other."""

    tokens: Sequence[str]
    """Text of every token, index = id; byte-level except for markers."""
    token_types: Sequence[int]
    """NORMAL, CONTROL, USER_DEFINED or UNUSED, one for each token."""
    merges: Sequence[tuple[str, str]]
    """Pairs in the order of their rank."""
    bos_id: int
    eos_id: int
    pad_id: int


def read_vocabulary(metadata: Mapping[str, object], source: str) -> Vocabulary:
    """Read and check the `tokenizer.ggml.*` keys.

    Args:
        metadata: GGUF key -> Python value; arrays as lists or numpy arrays.
        source: file name for error messages.

    Raises:
        ModelFileError: a key is missing or its value does not fit the others.
    """
    _check_kind(metadata, source)
    tokens = _array(metadata, "tokens", str, source)
    types = _array(metadata, "token_type", int, source)
    if len(types) != len(tokens):
        raise ModelFileError(
            source, _PREFIX + "token_type", f"{len(types)} values for {len(tokens)} tokens"
        )
    vocab = {text: i for i, text in enumerate(tokens)}
    _check_tokens(tokens, vocab, source)
    defaults = {
        "bos_token_id": vocab[BOS],
        "eos_token_id": vocab[EOS],
        "padding_token_id": vocab.get(PAD, vocab[EOS]),
    }
    bos_id, eos_id, pad_id = (
        _token_id(metadata, name, default, len(tokens), source)
        for name, default in defaults.items()
    )
    merges = _merges(_array(metadata, "merges", str, source), vocab, source)
    return Vocabulary(tokens, types, merges, bos_id, eos_id, pad_id)


def _required(metadata: Mapping[str, object], name: str, source: str) -> object:
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise ModelFileError(source, _PREFIX + name, "missing; the tokenizer needs it")
    return value


def _array(metadata: Mapping[str, object], name: str, kind: type, source: str) -> list:
    """A list-valued key whose elements are all of one type."""
    value = _required(metadata, name, source)
    values = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(values, (list, tuple)):
        raise ModelFileError(source, _PREFIX + name, "is no array")
    wrong = next((element for element in values if not isinstance(element, kind)), None)
    if wrong is not None:
        raise ModelFileError(
            source, _PREFIX + name, f"has an element of type {type(wrong).__name__}"
        )
    return list(values)


def _check_kind(metadata: Mapping[str, object], source: str) -> None:
    """The tokenizer must be byte-level BPE; an unknown pre-tokenizer name is only reported."""
    model = _required(metadata, "model", source)
    if not isinstance(model, str) or model != "gpt2":
        raise ModelFileError(source, _PREFIX + "model", f"found {model!r}, needed 'gpt2'")
    pre = metadata.get(_PREFIX + "pre")
    if not isinstance(pre, str) or pre not in KNOWN_PRE:
        log.warning("%s: %spre is %r; the rule of %s is used", source, _PREFIX, pre, KNOWN_PRE[0])


def _check_tokens(tokens: Sequence[str], vocab: Mapping[str, int], source: str) -> None:
    def fail(problem: str) -> ModelFileError:
        return ModelFileError(source, _PREFIX + "tokens", problem)

    if len(vocab) != len(tokens):
        twice = next(text for i, text in enumerate(tokens) if vocab[text] != i)
        raise fail(f"token {twice!r} occurs twice")
    missing = [char for char in byte_alphabet() if char not in vocab]
    if missing:
        raise fail(f"{len(missing)} of 256 byte tokens are missing, first {missing[0]!r}")
    absent = [text for text in REQUIRED_MARKERS if text not in vocab]
    if absent:
        hint = " (a DeepSeek-V4 vocabulary? V4.1 is needed)" if absent == [SYSTEM] else ""
        raise fail(f"marker {', '.join(absent)} is missing{hint}")


def _merges(lines: Iterable[str], vocab: Mapping[str, int], source: str) -> list[tuple[str, str]]:
    """Merge pairs in rank order; one whose parts or result are not tokens can never apply."""
    key = _PREFIX + "merges"
    merges: list[tuple[str, str]] = []
    dropped = 0
    for line in lines:
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
    metadata: Mapping[str, object], name: str, default: int, vocab_size: int, source: str
) -> int:
    """An id-valued key, checked against the vocabulary."""
    key = _PREFIX + name
    value = metadata.get(key)
    if value is None:
        return default
    try:
        token_id = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ModelFileError(source, key, f"found {value!r}, needed a token id") from None
    if not 0 <= token_id < vocab_size:
        raise ModelFileError(source, key, f"id {token_id} is outside 0..{vocab_size - 1}")
    return token_id
