"""Two hundred damaged files: each is refused in one line that names file and field, or is sound."""

from __future__ import annotations

import struct
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf import open_draft, open_model

SEED = 20261101
MAX_SECONDS = 5.0
MAX_BYTES = 64 << 20
HUGE = (2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1)
TYPE_IDS = (0, 1, 2, 8, 12, 16, 19, 20, 24, 29, 30, 39, 40, 41, 99, 200, 2**31)


@dataclass(frozen=True)
class Mutation:
    """Damaged bytes, what was done, and the label of the field it was done to."""

    what: str
    label: str
    data: bytes


class Source:
    """An intact file with the places of its fields."""

    def __init__(self, data: bytearray, marks: dict[str, int]) -> None:
        self.data, self.marks = data, marks
        self.fields = sorted((place, label) for label, place in marks.items())

    def label_at(self, place: int) -> str:
        return self.fields[bisect_right(self.fields, (place, "\U0010ffff")) - 1][1]

    def labels(self, *endings: str) -> list[str]:
        return [label for label in self.marks if label.endswith(endings)]

    def patched(self, what: str, label: str, form: str, *values: Any, at: int = 0) -> Mutation:
        data = bytearray(self.data)
        struct.pack_into(form, data, self.marks[label] + at, *values)
        return Mutation(f"{what} {label} <- {values}", label, bytes(data))


def bit_flips(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    for _ in range(count):
        place = int(rng.integers(0, source.marks["data"]))
        data = bytearray(source.data)
        data[place] ^= 1 << int(rng.integers(0, 8))
        label = source.label_at(place)
        yield Mutation(f"bit of byte {place} ({label})", label, bytes(data))


def truncations(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    for number in range(count):
        end = source.marks["data"] if number % 2 else len(source.data)
        size = int(rng.integers(0, end))
        yield Mutation(f"cut to {size}", "end", bytes(source.data[:size]))


def wrong_counts(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    labels = ["num_tensors", "num_keys", *source.labels(":count")]
    for _ in range(count):
        label = str(rng.choice(labels))
        (value,) = struct.unpack_from("<Q", source.data, source.marks[label])
        wrong = [0, value - 1, value + 1, value * 2, *HUGE]
        yield source.patched("count", label, "<Q", int(wrong[rng.integers(0, len(wrong))]) % 2**64)


def wrong_lengths(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    labels = source.labels(":length")
    for _ in range(count):
        label = str(rng.choice(labels))
        (value,) = struct.unpack_from("<Q", source.data, source.marks[label])
        wrong = [0, value - 1, value + 1, value + 8, *HUGE]
        yield source.patched("length", label, "<Q", int(wrong[rng.integers(0, len(wrong))]))


def swapped_types(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    labels = source.labels(":type", ":element")
    for _ in range(count):
        label = str(rng.choice(labels))
        choices = TYPE_IDS if label.startswith("tensor:") else (*range(14), 2**20)
        yield source.patched("type", label, "<I", int(rng.choice(choices)))


def moved_tensors(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    labels = source.labels(":offset")
    for _ in range(count):
        label, other = rng.choice(labels, 2, replace=False).tolist()
        (there,) = struct.unpack_from("<Q", source.data, source.marks[other])
        wrong = [there, there + 32, there + 1, len(source.data), *HUGE]
        yield source.patched("offset", label, "<Q", int(wrong[rng.integers(0, len(wrong))]))


def wrong_extents(source: Source, rng: np.random.Generator, count: int) -> Iterator[Mutation]:
    for _ in range(count):
        label = str(rng.choice(source.labels(":dims", ":rank")))
        if label.endswith(":rank"):
            yield source.patched("rank", label, "<I", int(rng.choice([0, 1, 2, 3, 4, 5, 2**30])))
        else:
            wrong = [0, 1, 31, 33, 64, *HUGE]
            yield source.patched("extent", label, "<Q", int(wrong[rng.integers(0, len(wrong))]))


def mutations(source: Source) -> list[Mutation]:
    rng = np.random.default_rng(SEED)
    makers: list[tuple[Callable[[Source, np.random.Generator, int], Iterator[Mutation]], int]] = [
        (bit_flips, 80),
        (truncations, 30),
        (wrong_counts, 20),
        (wrong_lengths, 20),
        (swapped_types, 20),
        (moved_tensors, 15),
        (wrong_extents, 15),
    ]
    return [mutation for make, count in makers for mutation in make(source, rng, count)]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check(path: Path, mutation: Mutation, open_it: Callable[[Path], Any], intact: Any) -> bool:
    """Open a damaged file; return whether it was refused. Anything else than the two outcomes
    that are allowed is an assertion."""
    path.write_bytes(mutation.data)
    before = resident_bytes()
    tracemalloc.start()
    start = time.perf_counter()
    try:
        file = open_it(path)
    except ModelFileError as error:
        refused, text, field = True, str(error), error.field
    else:
        refused = False
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < MAX_SECONDS, mutation.what
    assert peak < MAX_BYTES and resident_bytes() - before < MAX_BYTES, mutation.what
    if refused:
        assert text.startswith(f"{path}: ") and "\n" not in text and text.isprintable()
        assert field and field in text and len(text) < 2000, mutation.what
        return True
    # What opens must be whole: only the payload or type of a value, or the name of an optional
    # key, may have been hit; tensors still are where they were.
    kind = mutation.label.rsplit(":", 1)[-1]
    assert kind in ("value", "type", "element", "name", "end", "version"), mutation.what
    for name, info in file.tensors.items():
        wanted = intact.tensors[name]
        assert (info.shape, info.offset) == (wanted.shape, wanted.offset), mutation.what
        # A type of another size is always found.
        assert info.num_bytes == wanted.num_bytes, mutation.what
    for name in ("output_norm.weight", "blk.1.ffn_up_exps.weight"):
        assert file.raw(name).equal(intact.raw(name)), mutation.what
    return False


@pytest.mark.parametrize("what", ["model", "draft"])
def test_damaged_files(tiny: Any, tiny_draft: Any, tmp_path: Path, what: str) -> None:
    made, open_it = (tiny, open_model) if what == "model" else (tiny_draft, open_draft)
    source = Source(*made.to_bytes())
    (tmp_path / "intact.gguf").write_bytes(source.data)
    intact = open_it(tmp_path / "intact.gguf")
    cases = mutations(source)
    assert len(cases) == 200
    changed = [case for case in cases if case.data != source.data]
    refused = sum(check(tmp_path / "m.gguf", case, open_it, intact) for case in changed)
    # Most damage must be found: the rest is in payloads such as token texts.
    assert refused > 0.75 * len(changed)


def test_every_truncation_of_the_header_is_refused(tiny: Any, tmp_path: Path) -> None:
    source = Source(*tiny.to_bytes())
    path = tmp_path / "m.gguf"
    for size in range(0, source.marks["data"], 37):
        path.write_bytes(source.data[:size])
        with pytest.raises(ModelFileError):
            open_model(path)


def test_noise_behind_the_magic_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    path = tmp_path / "m.gguf"
    for number in range(50):
        noise = rng.integers(0, 256, 4096, dtype=np.uint8).tobytes()
        small = struct.pack("<IQQ", 3, number % 5, 1 + number % 7)
        path.write_bytes(b"GGUF" + (small if number % 2 else b"") + noise)
        with pytest.raises(ModelFileError) as caught:
            open_model(path)
        assert caught.value.field and "\n" not in str(caught.value)
