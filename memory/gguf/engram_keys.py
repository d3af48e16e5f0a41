"""Read, rebuild and check the constants of the n-gram memory.

The hash constants follow from few numbers, so they are checked if stored and rebuilt if not:

* bucket sizes: for every layer and n-gram length, the next primes not used before, all searches
  starting at one number (16,000,000 in the released model)
* multipliers: numpy's `default_rng(10007 * layer)`, draws below floor(floor((2^63 - 1) / V) / 2),
  doubled plus one; V is the size of the compressed vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt

import numpy as np

from engine.model_config import EngramConfig
from memory.gguf.keys import KeyReader
from memory.gguf.layouts import MappedModel

PRIME_START = 16_000_000
MAX_HASH_COLUMNS = 512
MAX_ROWS = 1 << 40


def is_prime(number: int) -> bool:
    """Return whether `number` is prime, by trial division (up to 2^40: a million steps)."""
    if number < 4:
        return number > 1
    if number % 2 == 0:
        return False
    divisors = np.arange(3, isqrt(number) + 1, 2, dtype=np.int64)
    return bool((number % divisors != 0).all())


def bucket_primes(num_layers: int, ngrams: int, heads: int, start: int) -> list[list[int]]:
    """Return the bucket sizes of every Engram layer, n-gram length outermost.

    Args:
        num_layers: Engram layers.
        ngrams: n-gram lengths per layer.
        heads: hash heads per length.
        start: least number to try.
    """
    taken: set[int] = set()
    layers: list[list[int]] = []
    for _ in range(num_layers):
        sizes: list[int] = []
        for _ in range(ngrams):
            number = start - 1
            for _ in range(heads):
                number += 1
                while number in taken or not is_prime(number):
                    number += 1
                taken.add(number)
                sizes.append(number)
        layers.append(sizes)
    return layers


def hash_multipliers(layer: int, count: int, compressed_vocab: int) -> list[int]:
    """Return the `count` odd multipliers of backbone layer `layer`, exact 64-bit integers."""
    bound = max(1, (2**63 - 1) // compressed_vocab // 2)
    draws = np.random.default_rng(10007 * layer).integers(0, bound, size=count, dtype=np.int64)
    return [2 * int(draw) + 1 for draw in draws]


def running_sum(sizes: Sequence[int]) -> list[int]:
    """Return the sum of all sizes before each one."""
    total, sums = 0, []
    for size in sizes:
        sums.append(total)
        total += size
    return sums


def rows_of(values: Sequence[int], width: int) -> list[list[int]]:
    """Split a flat list into rows of `width`."""
    return [list(values[i : i + width]) for i in range(0, len(values), width)]


def engram_key_names(keys: KeyReader) -> list[str]:
    """Return the keys that a model needs because it has an n-gram memory; empty without one.

    Hash constants are rebuilt if missing. ds4 files state neither the n-gram length nor the heads:
    both follow from the lengths of the arrays.
    """
    if not keys.has("ple.layers"):
        return []
    required = ["embedding_length_per_layer_input", "engram.pad_token_id", "engram.token_map"]
    if not keys.has("ple.layer_multipliers"):
        required.append("ple.ngram_size")
    if not keys.has("ple.head_vocab_sizes"):
        required.append("ple.heads_per_ngram")
    return required


def read_token_map(keys: KeyReader, vocab_size: int) -> tuple[int, ...]:
    """Return the map of token ids to compressed ids.

    Raises:
        ModelFileError: wrong length or an id out of range.
    """
    key = "engram.token_map"
    values = keys.get(key)
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise keys.fail(key, "not an array of integers")
    if len(values) != vocab_size:
        raise keys.fail(key, f"{len(values)} entries for a vocabulary of {vocab_size}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= vocab_size:
        raise keys.fail(key, f"ids from {low} to {high}; they must be 0 to {vocab_size - 1}")
    return tuple(values.tolist())


def read_engram_config(
    keys: KeyReader, model: MappedModel, num_layers: int, vocab_size: int
) -> EngramConfig | None:
    """Return the constants of the n-gram memory, or None if the model has none.

    Raises:
        ModelFileError: constants contradict each other, the table or their definition.
    """
    if not keys.has("ple.layers"):
        return None
    layers = keys.integers("ple.layers")
    if not layers or layers != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < num_layers:
        raise keys.fail("ple.layers", f"{layers[:16]} is not a strictly ascending list of layers")
    multipliers = keys.integers("ple.layer_multipliers", [])
    sizes = keys.integers("ple.head_vocab_sizes", [])
    offsets = keys.integers("ple.head_offsets", [])
    ngram = keys.integer("ple.ngram_size", 2, 16, len(multipliers) // len(layers) or None)
    ngrams = ngram - 1
    heads = keys.integer(
        "ple.heads_per_ngram", 1, 1024, len(sizes) // (len(layers) * ngrams) or None
    )
    columns = ngrams * heads
    row_dim = keys.integer("embedding_length_per_layer_input", 1, 1 << 16)
    pad = keys.integer("engram.pad_token_id", 0, vocab_size - 1)
    token_map = read_token_map(keys, vocab_size)
    if len(layers) * columns > MAX_HASH_COLUMNS:
        raise keys.fail("ple.heads_per_ngram", f"{len(layers) * columns} hash columns are too many")
    compressed = max(token_map) + 1
    stated = keys.integer("engram.compressed_vocab_size", 1, vocab_size, compressed)
    if stated != compressed:
        raise keys.fail(
            "engram.compressed_vocab_size", f"{stated}, but the token map has {compressed} ids"
        )
    wanted = [hash_multipliers(layer, ngram, compressed) for layer in layers]
    check_stored(keys, "ple.layer_multipliers", multipliers, wanted)
    bucket_sizes = read_sizes(keys, sizes, len(layers), ngrams, heads)
    row_offsets = read_offsets(keys, model, layers, offsets, bucket_sizes)
    return EngramConfig(
        layers=tuple(layers),
        ngram_size=ngram,
        num_heads=heads,
        row_dim=row_dim,
        multipliers=tuple(map(tuple, wanted)),
        bucket_sizes=tuple(map(tuple, bucket_sizes)),
        row_offsets=tuple(map(tuple, row_offsets)),
        pad_token_id=pad,
        token_map=token_map,
    )


def check_stored(
    keys: KeyReader, key: str, stored: Sequence[int], wanted: Sequence[Sequence[int]]
) -> None:
    """Check stored constants against rebuilt ones.

    Nothing stored is fine. Constants of the first layers only are fine too: one published file
    lists fewer layers than it has.

    Raises:
        ModelFileError: a wrong length, or the first value that differs.
    """
    flat = [value for row in wanted for value in row]
    if len(stored) > len(flat) or len(stored) % len(wanted[0]):
        raise keys.fail(key, f"{len(stored)} values, expected {len(flat)}")
    for number, (found, value) in enumerate(zip(stored, flat, strict=False)):
        if found != value:
            raise keys.fail(
                key,
                f"value {number} is {found}; by its definition it is {value} (the file is damaged "
                "or its converter lost bits)",
            )


def read_sizes(
    keys: KeyReader, stored: Sequence[int], layers: int, ngrams: int, heads: int
) -> list[list[int]]:
    """Return the bucket sizes [layers][ngrams * heads].

    Raises:
        ModelFileError: stored sizes are out of range or not the primes they must be.
    """
    key = "ple.head_vocab_sizes"
    start = PRIME_START
    if stored:
        start = stored[0]
        if not 2 <= start < 1 << 31:
            raise keys.fail(key, f"value 0 is {start}, not between 2 and 2^31")
        if not is_prime(start):
            raise keys.fail(key, f"value 0 is {start}, which is not prime")
    sizes = bucket_primes(layers, ngrams, heads, start)
    check_stored(keys, key, stored, sizes)
    return sizes


def read_offsets(
    keys: KeyReader,
    model: MappedModel,
    layers: Sequence[int],
    stored: Sequence[int],
    sizes: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Return the first row of every bucket range in the one row space of all layers.

    Stored offsets may count within a layer (local) or through the whole table (global). With one
    table per layer, a layer's base is the number of rows before its table.

    Raises:
        ModelFileError: offsets are no running sums, ranges overlap, or the table has too few rows.
    """
    key = "ple.head_offsets"
    columns = len(sizes[0])
    if len(stored) % columns or len(stored) > columns * len(layers):
        raise keys.fail(key, f"{len(stored)} values, expected {columns * len(layers)}")
    local = [running_sum(row) for row in sizes]
    given = rows_of(stored, columns)
    for number, row in enumerate(given):
        relative = [value - row[0] for value in row]
        if relative != local[number]:
            at = next(i for i in range(columns) if relative[i] != local[number][i])
            raise keys.fail(
                key,
                f"value {number * columns + at} is {row[at]}; by the bucket sizes it is "
                f"{row[0] + local[number][at]}",
            )
    totals = [sum(row) for row in sizes]
    bases = running_sum(totals)
    by_layer = {part.layer: part for part in model.table}
    if model.table and None not in by_layer:
        starts = dict(
            zip(by_layer, running_sum([part.num_rows for part in model.table]), strict=True)
        )
        for number, layer in enumerate(layers):
            if layer not in by_layer:
                raise keys.fail("ple.layers", f"layer {layer} has no Engram table")
            bases[number] = starts[layer]
            rows = by_layer[layer].num_rows
            if rows < totals[number]:
                raise keys.fail(
                    key, f"the table of layer {layer} has {rows} rows, needs {totals[number]}"
                )
    elif len(given) == len(layers) and any(row[0] for row in given):
        bases = [row[0] for row in given]
    spans = sorted((base, base + total) for base, total in zip(bases, totals, strict=True))
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise keys.fail(key, "the row ranges of two layers overlap")
    rows = sum(part.num_rows for part in model.table) if model.table else MAX_ROWS
    if spans[-1][1] > rows or spans[0][0] < 0:
        raise keys.fail(
            key,
            f"rows up to {spans[-1][1]} are addressed, the table has {rows}",
        )
    return [[base + value for value in row] for base, row in zip(bases, local, strict=True)]
