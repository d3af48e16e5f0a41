"""A byte-level vocabulary with the model's markers, for models without trained text."""

from __future__ import annotations

from engine.errors import ConfigError
from memory.gguf.maker.shape import Config

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
    """The printable stand-in of each byte in byte-level BPE vocabularies."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    shifted = iter(range(256, 512))
    return [chr(b if b in plain else next(shifted)) for b in range(256)]


def tokenizer(cfg: Config) -> tuple[list[str], list[int], list[str]]:
    """Return tokens, token types and merges.

    In order: bos, eos, pad, 256 bytes, a few merged tokens, the chat markers, then placeholders up
    to the vocabulary size.

    Raises:
        ConfigError: the vocabulary is too small for bytes and markers.
    """
    tokens = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", *byte_alphabet()]
    kinds = [CONTROL] * 3 + [NORMAL] * 256
    room = cfg.vocab - len(tokens) - len(SPECIALS)
    if room < 0:
        raise ConfigError(
            f"vocab_size {cfg.vocab} is too small: 256 byte tokens and {3 + len(SPECIALS)} "
            f"markers need {cfg.vocab - room}"
        )
    merges = MERGES[:room]
    tokens += [m.replace(" ", "") for m in merges]
    kinds += [NORMAL] * len(merges)
    tokens += SPECIALS
    kinds += [CONTROL if special else USER_DEFINED for special in SPECIALS.values()]
    fill = cfg.vocab - len(tokens)
    tokens += [f"<｜place▁holder▁no▁{i}｜>" for i in range(fill)]
    kinds += [CONTROL] * fill
    return tokens, kinds, merges
