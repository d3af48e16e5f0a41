"""Constants of the n-gram hash, for the released shape too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from memory.gguf.maker.engram_constants import (
    engram_arrays,
    engram_multipliers,
    engram_primes,
    is_prime,
    random_token_map,
)
from memory.gguf.maker.shape import Config

RELEASED = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_vocab_size": 16_000_000,
    "engram_compressed_vocab_size": 99092,
}


def test_primes() -> None:
    sieve = [n > 1 for n in range(2000)]
    for n in range(2, 2000):
        if sieve[n]:
            sieve[2 * n :: n] = [False] * len(sieve[2 * n :: n])
    assert [is_prime(n) for n in range(2000)] == sieve


def test_released_bucket_sizes() -> None:
    first, second = engram_primes(Config.from_mapping(RELEASED))
    assert (first[0], first[-1], second[0], second[-1]) == (16000057, 16000463, 16000477, 16000889)
    assert (len(first), len(second)) == (24, 24)
    assert (sum(first), sum(second)) == (384_006_168, 384_016_682)
    assert len({*first, *second}) == 48


def test_released_multipliers() -> None:
    assert engram_multipliers(Config.from_mapping(RELEASED)) == [
        *(76632096046245, 4839876093313, 35959672319349, 73987337458391),
        *(67716810739261, 51510806800915, 30921347202721, 82619226485591),
    ]


def test_token_map_numbers_by_first_appearance(config: dict[str, Any]) -> None:
    token_map = random_token_map(Config.from_mapping(config), np.random.default_rng(1))
    assert len(token_map) == 300
    seen: list[int] = []
    for value in token_map:
        if value not in seen:
            assert value == len(seen)
            seen.append(value)
    assert len(seen) == 250
    assert token_map != sorted(token_map)


def test_token_map_cannot_grow(config: dict[str, Any]) -> None:
    config["text_config"]["engram_compressed_vocab_size"] = 301
    with pytest.raises(ConfigError, match="engram_compressed_vocab_size 301"):
        random_token_map(Config.from_mapping(config), np.random.default_rng(1))


def test_arrays_of_a_checkpoint(config: dict[str, Any]) -> None:
    cfg = Config.from_mapping(config)
    token_map = random_token_map(cfg, np.random.default_rng(2))
    arrays = engram_arrays(cfg, token_map)
    assert arrays["primes"].shape == (2, 2, 1)
    assert arrays["multipliers"].shape == (2, 3)
    np.testing.assert_array_equal(arrays["offsets"], [[0, p[0]] for p in engram_primes(cfg)])
    assert arrays["pad_compressed_id"].tolist() == [token_map[2]]
