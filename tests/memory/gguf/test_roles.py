from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory.gguf import open_model

Named = Callable[..., None]
KV, INDEX = "attention.kv_source_layers", "attention.indexer.source_layers"
RATIOS, SOURCE = "attention.compress_ratios", "attention.indexer.candidate_source_layer"
BLOCKS = "attention.indexer.candidate_top_k_blocks"

WRONG: list[tuple[str, str, Any, str, str]] = [
    (RATIOS, "[i32]", [0, 2, 2, 1, 3], RATIOS, "layer 4 has ratio 3"),
    (RATIOS, "[i32]", [0, 2, 2, 1, -1], RATIOS, "layer 4 has ratio -1"),
    (RATIOS, "[i32]", [0, 2, 2, 2, 1], KV, "layer 4 has ratio 1, its source 3 has 2"),
    (RATIOS, "[i32]", [2, 2, 2, 1, 1], KV, "layer 0 has ratio 2 but no source"),
    (RATIOS, "[i32]", [0, 0, 2, 1, 1], KV, "layer 1 is a source but"),
    (KV, "[i32]", [3, 1], KV, "not strictly ascending"),
    (KV, "[i32]", [1, 1, 3], KV, "not strictly ascending"),
    (KV, "[i32]", [1, 5], KV, "layer 5 is not below 5"),
    (KV, "[i32]", [-1, 1], KV, "layer -1"),
    (KV, "[i32]", [1], KV, "layer 3 has ratio 1, its source 1 has 2"),
    (KV, "[i32]", [3], KV, "layer 1 has ratio 2 but no source"),
    (INDEX, "[i32]", [1, 4], INDEX, "layer 3 has ratio 1, its source 1 has 2"),
    (INDEX, "[i32]", [0, 1, 3], INDEX, "layer 0 is a source but"),
    (SOURCE, "i32", 2, SOURCE, "not among the index source layers"),
    (SOURCE, "i32", 1, SOURCE, "another ratio"),
    (BLOCKS, "u32", 2, BLOCKS, "cannot hold the top 8"),
]


@pytest.mark.parametrize(("key", "kind", "value", "field", "words"), WRONG)
def test_impossible_roles_are_named(
    tiny: Any, assert_named: Named, key: str, kind: str, value: Any, field: str, words: str
) -> None:
    assert_named(tiny.set(key, kind, value), f"deepseek41.{field}", words)


def test_candidate_readers_need_the_same_kv_source(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    path = tiny.set(KV, "[i32]", [1, 3, 4]).write(tmp_path / "m.gguf")
    assert "another KV source" in str(error_of(lambda: open_model(path)))
