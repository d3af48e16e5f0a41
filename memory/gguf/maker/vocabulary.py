"""A byte-level vocabulary with the model's markers, for models without trained text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ConfigError

SPECIALS = {  # text -> whether it is flagged special
    "<｜System｜>": True,
    "<｜User｜>": False,
    "<｜Assistant｜>": False,
    "<think>": False,
    "</think>": False,
    "｜DSML｜": False,
    "<｜latest_reminder｜>": False,
    "<｜action｜>": False,
    "<｜query｜>": False,
    "<｜authority｜>": False,
    "<｜domain｜>": False,
    "<｜title｜>": False,
    "<｜read_url｜>": False,
}
MERGES = [
    *("Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "o r", "e n"),
    *("Ġ c", "i s", "i t", "Ġ w", "Ġ o", "e s", "in g", "a n", "a l", "Ġ f", "o u", "Ġ p"),
]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def byte_alphabet() -> list[str]:
    """Return the printable stand-in of each byte in byte-level BPE vocabularies."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(b if b in plain else next(shifted)) for b in range(256)]


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of a byte-level BPE tokenizer, as a GGUF file stores it."""

    tokens: Sequence[str]
    """Text of every token, index = id."""
    token_types: Sequence[int]
    """NORMAL, CONTROL or USER_DEFINED, one for each token."""
    merges: Sequence[str]
    """Pairs with one space between them, in the order of their rank."""


def made_vocabulary(vocab_size: int) -> Vocabulary:
    """Return a vocabulary of bytes, a few merged tokens, the chat markers and placeholders.

    In order: bos, eos, pad, 256 bytes, merged tokens, markers, then placeholders up to the size.

    Raises:
        ConfigError: the vocabulary is too small for bytes and markers.
    """
    tokens = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", *byte_alphabet()]
    token_types = [CONTROL] * 3 + [NORMAL] * 256
    room = vocab_size - len(tokens) - len(SPECIALS)
    if room < 0:
        raise ConfigError(
            f"vocab_size {vocab_size} is too small: 256 byte tokens and {3 + len(SPECIALS)} "
            f"markers need {vocab_size - room}"
        )
    merges = MERGES[:room]
    tokens += [merge.replace(" ", "") for merge in merges]
    token_types += [NORMAL] * len(merges)
    tokens += SPECIALS
    token_types += [CONTROL if special else USER_DEFINED for special in SPECIALS.values()]
    fill = vocab_size - len(tokens)
    tokens += [f"<｜place▁holder▁no▁{i}｜>" for i in range(fill)]
    token_types += [CONTROL] * fill
    # Other readers refuse a file without any merge; one of unknown tokens can never apply.
    return Vocabulary(tokens, token_types, merges or ["Ġ t"])
