"""Constants of the n-gram hash: bucket sizes, multipliers, a random token map."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import ConfigError
from memory.gguf.maker.shape import Config

Array = np.ndarray[Any, Any]


def is_prime(n: int) -> bool:
    """Return whether `n` is a prime, by trial division."""
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def engram_primes(cfg: Config) -> list[list[int]]:
    """Return bucket counts, one list per Engram layer.

    For every n-gram length and head the next prime that no earlier head of the model has taken;
    the search starts at engram_vocab_size for every n-gram length.
    """
    taken: set[int] = set()
    layers = []
    for _ in cfg.engram_layers:
        sizes = []
        for _ in range(cfg["engram_max_ngram_size"] - 1):
            current = cfg["engram_vocab_size"] - 1
            for _ in range(cfg["engram_n_heads"]):
                current += 1
                while current in taken or not is_prime(current):
                    current += 1
                taken.add(current)
                sizes.append(current)
        layers.append(sizes)
    return layers


def engram_multipliers(cfg: Config) -> list[int]:
    """Return odd hash multipliers, `engram_max_ngram_size` per layer, layer after layer."""
    bound = max(1, np.iinfo(np.int64).max // cfg["engram_compressed_vocab_size"] // 2)
    return [
        int(2 * v + 1)
        for layer in cfg.engram_layers
        for v in np.random.default_rng(10007 * layer).integers(
            0, bound, size=cfg["engram_max_ngram_size"], dtype=np.int64
        )
    ]


def random_token_map(cfg: Config, rng: np.random.Generator) -> list[int]:
    """Return a many-to-one map with ids numbered by first appearance, as the official map is.

    Raises:
        ConfigError: the compressed vocabulary is empty or larger than the vocabulary.
    """
    vocab, compressed = cfg.vocab, cfg["engram_compressed_vocab_size"]
    if not 0 < compressed <= vocab:
        raise ConfigError(
            f"engram_compressed_vocab_size {compressed}: must be 1 to vocab_size ({vocab})"
        )
    repeats = set((rng.choice(vocab - 1, size=vocab - compressed, replace=False) + 1).tolist())
    out: list[int] = []
    fresh = 0
    for token in range(vocab):
        if token in repeats:
            out.append(int(rng.integers(fresh)))
        else:
            out.append(fresh)
            fresh += 1
    return out


def engram_arrays(cfg: Config, token_map: list[int]) -> dict[str, Array]:
    """Return the constants as a checkpoint folder holds them (offsets local to a layer)."""
    primes = engram_primes(cfg)
    shape = (len(primes), cfg["engram_max_ngram_size"] - 1, cfg["engram_n_heads"])
    return {
        "token_map": np.array(token_map, np.int32),
        "multipliers": np.array(engram_multipliers(cfg), np.int64).reshape(len(primes), -1),
        "primes": np.array(primes, np.int64).reshape(shape),
        "offsets": np.array([np.cumsum([0, *row[:-1]]) for row in primes], np.int64),
        "pad_compressed_id": np.array([token_map[cfg.get("engram_pad_token_id", 2)]], np.int64),
    }
