from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from memory.gguf import open_model
from memory.gguf.inspect import describe, format_fact, render

TABLE = "per_layer_token_embd.weight"


def rendered(path: Path, engram_path: str = "") -> str:
    out = io.StringIO()
    render(path, engram_path, Console(file=out, width=120, color_system=None))
    return out.getvalue()


def test_complete_model(tiny: Any, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    report = describe(path)
    assert json.loads(json.dumps(report)) == json.loads(json.dumps(describe(open_model(path))))
    assert report["architecture"] == "deepseek41" and report["layout"]["id"] == "U"
    assert report["name"] == "Tiny" and report["tensor_count"] == len(tiny.tensors)
    assert report["file_bytes"] == path.stat().st_size
    sizes = {n: len(data) for n, (_, _, data) in tiny.tensors.items()}
    assert sum(row["bytes"] for row in report["classes"]) == sum(sizes.values())
    assert sum(row["bytes"] for row in report["types"]) == sum(sizes.values())
    weights = sum(int(np.prod(t[1])) for n, t in tiny.tensors.items() if n != TABLE)
    assert report["parameters"] == weights
    assert report["bits_per_weight"] == pytest.approx(
        8 * (sum(sizes.values()) - sizes[TABLE]) / weights
    )
    assert report["missing"] == {"keys": [], "tensors": [], "engram_shard": ""}
    assert report["ignored_tensors"] == []
    assert report["config"]["engram"]["compressed_vocab_size"] == 25
    assert report["config"]["engram"]["num_rows"] == 928
    text = rendered(path)
    assert "complete: nothing is missing" in text and "llama.cpp b11870" in text
    assert "experts" in text and "Q8_0" in text and "kv source layers" in text


def test_missing_keys_do_not_hide_the_rest(tiny: Any, tmp_path: Path) -> None:
    path = tiny.drop("expert_count", "rope.scaling.factor").write(tmp_path / "m.gguf")
    report = describe(path)
    assert report["missing"]["keys"] == [
        "deepseek41.expert_count",
        "deepseek41.rope.scaling.factor",
    ]
    assert report["config"] is None and report["tensor_count"] == len(tiny.tensors)
    text = rendered(path)
    assert "missing keys: deepseek41.expert_count" in text and "experts" in text


def test_missing_tensors_and_ignored_ones(tiny: Any, tmp_path: Path) -> None:
    tiny.remove(*[f"blk.{i}.attn_norm.weight" for i in range(5)], "output.weight")
    for layer in range(5):
        tiny.put(f"blk.{layer}.exp_probs_b_vl.bias", np.zeros(4))
    tiny.put("[red]x\x1b", np.zeros(2))
    path = tiny.write(tmp_path / "m.gguf")
    report = describe(path)
    assert report["missing"]["tensors"] == ["output.weight", "blk.{0-4}.attn_norm.weight"]
    assert report["ignored_tensors"] == ["blk.{0-4}.exp_probs_b_vl.bias", "[red]x\\x1b"]
    text = rendered(path)
    assert "missing tensors: output.weight, blk.{0-4}.attn_norm.weight" in text
    assert "[red]x\\x1b" in text and "\x1b" not in text


def test_missing_engram_shard(tiny: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    paths = tiny.write_split(folder)
    paths[2].rename(tmp_path / "table.gguf")
    report = describe(paths[1])
    assert report["missing"]["engram_shard"] == str(paths[2])
    assert report["missing"]["tensors"] == [TABLE]
    assert len(report["shards"]) == 2 and report["config"]["num_layers"] == 5
    text = rendered(paths[0])
    assert "missing Engram shard" in text and paths[2].name in text.replace("\n", "")
    assert "nothing is missing" in rendered(paths[0], str(tmp_path / "table.gguf"))


def test_draft(tiny_draft: Any, tmp_path: Path) -> None:
    path = tiny_draft.write(tmp_path / "d.gguf")
    report = describe(path)
    assert report["architecture"] == "dflash" and report["config"]["block_size"] == 5
    assert report["missing"]["tensors"] == []
    assert "draft heads" in rendered(path)
    tiny_draft.remove("fc.weight").drop("dflash.block_size").write(path)
    assert describe(path)["missing"]["keys"] == ["dflash.block_size"]
    tiny_draft.set("dflash.block_size", "u32", 5).write(path)
    assert describe(path)["missing"]["tensors"] == ["fc.weight"]


def test_damaged_and_foreign_files_are_refused(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:5000])
    error_of(lambda: describe(path))
    tiny.put("output.weight", np.zeros((40, 64))).write(path)
    assert error_of(lambda: describe(path)).field == "output.weight"
    tiny.set("general.architecture", "str", "llama").write(path)
    assert error_of(lambda: rendered(path)).field == "general.architecture"


def test_facts_are_short() -> None:
    assert format_fact((0, 0, 2, 2, 2, 1)) == "2 x 0, 3 x 2, 1"
    assert format_fact(1e-20) == "1e-20" and format_fact(None) == "None"
    assert format_fact(((1, 2), (3,))) == "(1, 2), (3)"
    assert len(format_fact(tuple(range(1000)))) == 120
