from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.gguf import open_model
from memory.gguf.engram_keys import bucket_primes, hash_multipliers, is_prime

Named = Callable[..., None]
SIZES = [101, 103, 107, 109, 113, 127, 131, 137]
OFFSETS = [sum(SIZES[:i]) for i in range(8)]


def test_constants_of_the_released_model() -> None:
    sizes = bucket_primes(2, 3, 8, 16_000_000)
    assert sizes[0][0] == 16000057 and sizes[0][23] == 16000463
    assert sizes[1][0] == 16000477 and sizes[1][23] == 16000889
    assert (sum(sizes[0]), sum(sizes[1])) == (384006168, 384016682)
    assert hash_multipliers(1, 4, 99092) == [
        76632096046245,
        4839876093313,
        35959672319349,
        73987337458391,
    ]
    assert hash_multipliers(14, 4, 99092) == [
        67716810739261,
        51510806800915,
        30921347202721,
        82619226485591,
    ]


def test_prime_test_against_a_sieve() -> None:
    limit = 20000
    sieve = np.ones(limit, bool)
    sieve[:2] = False
    for n in range(2, 142):
        if sieve[n]:
            sieve[n * n :: n] = False
    assert [is_prime(n) for n in range(limit)] == sieve.tolist()
    assert not is_prime(46337 * 46337) and is_prime(2**31 - 1)


def test_every_search_starts_anew() -> None:
    assert bucket_primes(2, 2, 2, 8) == [[11, 13, 17, 19], [23, 29, 31, 37]]
    assert bucket_primes(1, 1, 3, 11) == [[11, 13, 17]]


def test_missing_constants_are_rebuilt(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = open_model(tiny.write(tmp_path / "full.gguf")).config
    tiny.drop("ple.layer_multipliers", "ple.head_offsets")
    assert open_model(tiny.write(tmp_path / "a.gguf")).config == full
    tiny.drop("ple.head_vocab_sizes")
    monkeypatch.setattr("memory.gguf.engram_keys.PRIME_START", 100)
    assert open_model(tiny.write(tmp_path / "b.gguf")).config == full


def test_rebuilt_constants_that_the_table_cannot_hold(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    tiny.drop("ple.head_offsets", "ple.head_vocab_sizes")
    path = tiny.write(tmp_path / "m.gguf")
    assert "the table has 928" in str(error_of(lambda: open_model(path)))


def test_local_offsets_become_global(tiny: Any, tmp_path: Path) -> None:
    full = open_model(tiny.write(tmp_path / "full.gguf")).config
    tiny.set("ple.head_offsets", "[u64]", OFFSETS[:4] + [o - 420 for o in OFFSETS[4:]])
    assert open_model(tiny.write(tmp_path / "m.gguf")).config == full


def test_offsets_of_swapped_tables_are_trusted(tiny: Any, tmp_path: Path) -> None:
    tiny.set("ple.head_offsets", "[u64]", [o + 508 for o in OFFSETS[:4]] + [0, 113, 240, 371])
    engram = open_model(tiny.write(tmp_path / "m.gguf")).config.engram
    assert engram is not None
    assert engram.row_offsets == ((508, 609, 712, 819), (0, 113, 240, 371))
    assert engram.num_rows == 928


def put(key: str, kind: str, value: Any) -> Callable[[Any], Any]:
    return lambda tiny: tiny.set(key, kind, value)


def swap(key: str, index: int, value: int) -> Callable[[Any], Any]:
    def change(tiny: Any) -> Any:
        kind, values = tiny.keys[tiny.full(key)]
        return tiny.set(key, kind, [value if i == index else v for i, v in enumerate(values)])

    return change


WRONG: list[tuple[Callable[[Any], Any], str, str]] = [
    (put("ple.layers", "[i32]", [2, 0]), "ple.layers", "ascending"),
    (put("ple.layers", "[i32]", [0, 5]), "ple.layers", "ascending"),
    (put("ple.layers", "[i32]", [0, 0]), "ple.layers", "ascending"),
    (put("ple.layers", "u32", 3), "ple.layers", "not an array"),
    (put("ple.layers", "[i32]", [0, 1]), "ple.layer_multipliers", "value 3"),
    (put("ple.ngram_size", "u32", 1), "ple.ngram_size", "between 2"),
    (put("ple.ngram_size", "u32", 4), "ple.layer_multipliers", "expected 8"),
    (put("ple.heads_per_ngram", "u32", 0), "ple.heads_per_ngram", "between"),
    (put("ple.heads_per_ngram", "u32", 1000), "ple.heads_per_ngram", "too many"),
    (put("ple.heads_per_ngram", "u32", 3), "ple.head_vocab_sizes", "expected 12"),
    (swap("ple.layer_multipliers", 2, 12345), "ple.layer_multipliers", "value 2 is 12345"),
    (swap("ple.head_vocab_sizes", 0, 100), "ple.head_vocab_sizes", "not prime"),
    (swap("ple.head_vocab_sizes", 0, 1), "ple.head_vocab_sizes", "between 2"),
    (swap("ple.head_vocab_sizes", 0, 2**40), "ple.head_vocab_sizes", "between 2"),
    (swap("ple.head_vocab_sizes", 3, 111), "ple.head_vocab_sizes", "value 3 is 111"),
    (swap("ple.head_offsets", 1, 102), "ple.head_offsets", "value 1 is 102"),
    (swap("ple.head_offsets", 6, 2**63), "ple.head_offsets", "value 6"),
    (put("ple.head_offsets", "[u64]", OFFSETS[:3]), "ple.head_offsets", "3 values"),
    (
        put("ple.head_offsets", "[u64]", OFFSETS[:4] + [o + 1 for o in OFFSETS[4:]]),
        "ple.head_offsets",
        "rows up to 929",
    ),
    (
        put("ple.head_offsets", "[u64]", OFFSETS[:4] + [o - 1 for o in OFFSETS[4:]]),
        "ple.head_offsets",
        "overlap",
    ),
    (put("engram.pad_token_id", "u32", 40), "engram.pad_token_id", "between 0 and 39"),
    (put("engram.token_map", "[i32]", [0] * 39), "engram.token_map", "39 entries"),
    (swap("engram.token_map", 7, -1), "engram.token_map", "from -1"),
    (swap("engram.token_map", 7, 40), "engram.token_map", "to 40"),
    (put("engram.token_map", "[f32]", [0.0] * 40), "engram.token_map", "integers"),
    (put("engram.compressed_vocab_size", "u32", 24), "compressed_vocab_size", "25 ids"),
    (put("embedding_length_per_layer_input", "u32", 64), "per_layer_token_embd.weight", "64"),
]


@pytest.mark.parametrize(("change", "field", "words"), WRONG)
def test_wrong_constants_are_named(
    tiny: Any, assert_named: Named, change: Callable[[Any], Any], field: str, words: str
) -> None:
    change(tiny)
    if words == "64":
        tiny.put("blk.0.engram_kv.weight", np.ones((96, 256)))
        tiny.put("blk.2.engram_kv.weight", np.ones((96, 256)))
    assert_named(tiny, field, words)
