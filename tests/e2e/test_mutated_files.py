"""Damaged copies of the embedded model at the command line: one line, exit code 3, soon."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType

from engine.pocket import model_path

SEED = 20261102
EXTRA_SECONDS = 5.0
"""What a damaged file may take longer than the intact one, which includes Python's start."""
VERSION_AT, NUM_TENSORS_AT, NUM_KEYS_AT, HEADER_START = 4, 8, 16, 24
ID_BITS = range(6, 32)
"""Bits that make any small version or type id one that does not exist."""


@dataclass(frozen=True)
class Places:
    """Byte offsets of fields in the intact file, found by the gguf package."""

    key_types: list[int]
    array_counts: list[int]
    dims: list[int]
    types: list[int]
    offsets: list[int]
    data: int
    """Where the tensor data starts."""
    end: int


@pytest.fixture(scope="module")
def intact() -> bytes:
    return model_path().read_bytes()


@pytest.fixture(scope="module")
def places(intact: bytes) -> Places:
    reader = GGUFReader(model_path())

    def at(field: Any, part: int) -> int:
        return int(field.offset + sum(p.nbytes for p in field.parts[:part]))

    # Parts of a key: length, name, type, and for arrays element type, count, values;
    # of a tensor: length, name, rank, dims, type, offset.
    keys = [field for name, field in reader.fields.items() if not name.startswith("GGUF.")]
    tensors = [tensor.field for tensor in reader.tensors]
    return Places(
        key_types=[at(field, 2) for field in keys],
        array_counts=[at(f, 4) for f in keys if f.types[0] == GGUFValueType.ARRAY],
        dims=[at(field, 3) for field in tensors],
        types=[at(field, 4) for field in tensors],
        offsets=[at(field, 5) for field in tensors],
        data=int(reader.data_offset),
        end=len(intact),
    )


class Damage:
    """Damages a copy of the file; each method returns the copy."""

    def __init__(self, intact: bytes, places: Places, name: str) -> None:
        self.intact, self.places = intact, places
        self.rng = np.random.default_rng([SEED, *name.encode()])

    def flip(self, where: list[int], bits: range) -> bytes:
        """Flip one bit of the little-endian number at one of these places."""
        place, bit = int(self.rng.choice(where)), int(self.rng.choice(bits))
        data = bytearray(self.intact)
        data[place + bit // 8] ^= 1 << bit % 8
        return bytes(data)

    def count(self, where: list[int], change: Callable[[int], int]) -> bytes:
        """Change the 64-bit number at one of these places."""
        place = int(self.rng.choice(where))
        data = bytearray(self.intact)
        (value,) = struct.unpack_from("<Q", data, place)
        struct.pack_into("<Q", data, place, change(value))
        return bytes(data)

    def cut(self, low: int, high: int) -> bytes:
        """Keep a random number of bytes below `high`."""
        return self.intact[: int(self.rng.integers(low, high))]

    def huge(self, value: int) -> int:
        """A number of 2 ** 31 and more elements instead."""
        return value + 2 ** int(self.rng.integers(31, 63))


MUTATIONS: dict[str, Callable[[Damage, Places], bytes]] = {
    "bit of the magic": lambda d, p: d.flip([0], range(32)),
    "bit of the version": lambda d, p: d.flip([VERSION_AT], ID_BITS),
    "bit of a key's type": lambda d, p: d.flip(p.key_types, ID_BITS),
    "bit of a tensor's type": lambda d, p: d.flip(p.types, ID_BITS),
    "bit of a tensor's offset": lambda d, p: d.flip(p.offsets, range(24, 64)),
    "cut in the first numbers": lambda d, p: d.cut(1, HEADER_START),
    "cut in the header": lambda d, p: d.cut(HEADER_START, p.data),
    "cut in the data": lambda d, p: d.cut(p.data, p.end - 32),
    "one tensor too many": lambda d, p: d.count([NUM_TENSORS_AT], lambda n: n + 1),
    "huge number of keys": lambda d, p: d.count([NUM_KEYS_AT], d.huge),
    "huge array": lambda d, p: d.count(p.array_counts, d.huge),
    "huge extent": lambda d, p: d.count(p.dims, d.huge),
}
SERVED = ("bit of a tensor's type", "cut in the data", "huge array")


def run(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the command line; return what it printed and the seconds it took."""
    start_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done, time.perf_counter() - start_s


@pytest.fixture(scope="module")
def usual_s() -> float:
    """Seconds to inspect the intact file."""
    done, seconds = run("inspect", str(model_path()))
    assert done.returncode == 0 and done.stderr == "" and "270 tensors" in done.stdout
    return seconds


@pytest.fixture
def damaged(intact: bytes, places: Places, tmp_path: Path, name: str) -> Path:
    data = MUTATIONS[name](Damage(intact, places, name), places)
    assert data != intact
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    return path


def check_refused(path: Path, usual_s: float, *arguments: str) -> str:
    """Run a command that must refuse the file; return what it printed on standard output."""
    done, seconds = run(*arguments)
    lines = done.stderr.splitlines()
    assert done.returncode == 3, done.stderr
    assert len(lines) == 1 and lines[0].startswith(f"ds41: error: {path}: "), done.stderr
    assert lines[0].isprintable() and "Traceback" not in done.stdout
    assert seconds < usual_s + EXTRA_SECONDS
    return done.stdout


@pytest.mark.parametrize("name", MUTATIONS)
def test_inspect_refuses(damaged: Path, usual_s: float) -> None:
    assert check_refused(damaged, usual_s, "inspect", str(damaged)) == ""


@pytest.mark.parametrize("name", SERVED)
def test_serve_refuses(damaged: Path, usual_s: float) -> None:
    out = check_refused(damaged, usual_s, "serve", str(damaged), "--port", "0", "--device", "cpu")
    assert out.startswith("ds41: listening on ") and out.count("\n") == 1
