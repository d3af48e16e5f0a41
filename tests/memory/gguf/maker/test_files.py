"""Shards: names, order and balance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QT

from engine.errors import ConfigError
from memory.gguf.maker.files import Stored, assign_shards, shard_paths
from memory.gguf.maker.tensor import Tensor


def stored(sizes: list[int], table: bool) -> list[Stored]:
    items = [
        Stored(Tensor(f"t{i}", (1, n), "attention", ("x",)), QT.F32, np.zeros((1, n), np.uint8))
        for i, n in enumerate(sizes)
    ]
    if table:
        tensor = Tensor("table", (1, 9), "engram", ("x",))
        items.append(Stored(tensor, QT.F32, np.zeros((1, 9), np.uint8)))
    return items


def test_names() -> None:
    assert shard_paths(Path("a/m.gguf"), 1) == [Path("a/m.gguf")]
    assert shard_paths(Path("a/m.x.gguf"), 2) == [
        Path("a/m.x-00001-of-00002.gguf"),
        Path("a/m.x-00002-of-00002.gguf"),
    ]


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("split", [2, 3, 4, 6])
def test_order_and_balance(split: int, table: bool) -> None:
    rng = np.random.default_rng(split)
    items = stored(rng.integers(50, 150, size=200).tolist(), table)
    shards = assign_shards(items, split)
    assert len(shards) == split
    assert [item for shard in shards for item in shard] == items
    if table:
        assert [item.tensor.name for item in shards[-1]] == ["table"]
        shards = shards[:-1]
    sizes = [sum(item.data.nbytes for item in shard) for shard in shards]
    assert max(sizes) - min(sizes) < 400


def test_one_file_keeps_everything() -> None:
    items = stored([1, 2], True)
    assert assign_shards(items, 1) == [items]


@pytest.mark.parametrize(
    ("sizes", "table", "split"), [([5, 5], False, 3), ([5, 5], True, 4), ([9000, 1, 1], False, 3)]
)
def test_more_shards_than_tensors_fill(sizes: list[int], table: bool, split: int) -> None:
    with pytest.raises(ConfigError, match=f"split {split}: "):
        assign_shards(stored(sizes, table), split)
