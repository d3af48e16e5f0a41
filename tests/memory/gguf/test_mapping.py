from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import ModelFileError
from memory.gguf.mapping import map_bytes


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 10), (1, 2), (4095, 4097), (4096, 8192), (5000, 20000), (19999, 20000)],
)
def test_any_range(tmp_path: Path, start: int, stop: int) -> None:
    data = np.random.default_rng(start).integers(0, 256, 20000, dtype=np.uint8)
    path = tmp_path / "data"
    path.write_bytes(data.tobytes())
    mapped = map_bytes(str(path), start, stop)
    assert mapped.dtype == torch.uint8 and torch.equal(mapped, torch.from_numpy(data[start:stop]))


def maps_of(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if path.name in line]


def test_map_is_shared_read_only_and_lives_with_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "mapped-once"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    view = map_bytes(str(path), 100, 9000)[50:].view(-1, 10)[3:]
    gc.collect()
    lines = maps_of(path)
    assert len(lines) == 1 and lines[0].split()[1] == "r--s"
    del view
    gc.collect()
    assert maps_of(path) == []


def test_a_map_larger_than_memory_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with open(path, "r+b") as file:
        file.seek((1 << 40) - 3)
        file.write(b"abc")
    mapped = map_bytes(str(path), 12345, 1 << 40)
    assert len(mapped) == (1 << 40) - 12345
    assert bytes(mapped[-3:].tolist()) == b"abc"


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(100))
    with pytest.raises(ModelFileError, match="shrunk to 100 bytes, needs 101"):
        map_bytes(str(path), 0, 101)
    with pytest.raises(ModelFileError, match="cannot open"):
        map_bytes(str(tmp_path / "none"), 0, 1)
