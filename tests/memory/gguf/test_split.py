from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf import open_model
from memory.gguf.split import read_file_set

TABLE = "per_layer_token_embd.weight"
SHARED = "DeepSeek-V4.1-Flash-Engram-IQ4_NL.gguf"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A folder with an empty parent, so that searching the parent finds nothing by chance."""
    folder = tmp_path / "outer" / "model"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_any_shard_opens_the_set(tiny: Any, model_dir: Path, given: int) -> None:
    paths = tiny.write_split(model_dir, 4)
    model = open_model(paths[given])
    assert model.path == str(paths[0])
    assert set(model.tensors) == set(tiny.tensors)
    for name in ("token_embd.weight", "blk.4.ffn_down_shexp.weight", "blk.2.engram_kv.weight"):
        np.testing.assert_array_equal(model.decode(name).numpy(), tiny.values[name])
    assert [h.path for h in model.files.headers] == [str(p) for p in paths]
    for info in model.tensors.values():
        assert info.path == str(paths[info.file_index])


def test_relative_path_of_a_shard(
    tiny: Any, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = tiny.write_split(model_dir)
    monkeypatch.chdir(model_dir)
    assert open_model(paths[1].name).config.num_layers == 5


def test_missing_shards_are_all_named(
    tiny: Any, model_dir: Path, error_of: Callable[..., Any]
) -> None:
    paths = tiny.write_split(model_dir, 5)
    paths[1].unlink()
    paths[3].unlink()
    paths[3].symlink_to("nowhere.gguf")
    error = error_of(lambda: open_model(paths[2]))
    assert "2 of 5 shards missing" in str(error)
    assert paths[1].name in str(error) and f"{paths[3].name} (a dangling link)" in str(error)


def test_first_shard_missing(tiny: Any, model_dir: Path, error_of: Callable[..., Any]) -> None:
    paths = tiny.write_split(model_dir)
    paths[0].unlink()
    assert paths[0].name in str(error_of(lambda: open_model(paths[2])))


def test_missing_engram_shard_says_how_to_link(
    tiny: Any, model_dir: Path, error_of: Callable[..., Any]
) -> None:
    paths = tiny.write_split(model_dir)
    paths[2].unlink()
    error = error_of(lambda: open_model(paths[0]))
    assert error.field == TABLE
    assert f"Engram table missing: expected {paths[2].name}" in str(error)
    assert f"ln -s {SHARED} {paths[2].name}" in str(error)


@pytest.mark.parametrize("place", ["same", "parent", "explicit"])
@pytest.mark.parametrize("given", [0, 1])
def test_engram_table_found_by_name(tiny: Any, model_dir: Path, place: str, given: int) -> None:
    paths = tiny.write_split(model_dir)
    target = {
        "same": model_dir / SHARED,
        "parent": model_dir.parent / "DeepSeek-V4.1-Flash-Engram-Q8_0.gguf",
        "explicit": model_dir.parent / "anything.bin",
    }[place]
    paths[2].rename(target)
    model = open_model(paths[given], str(target) if place == "explicit" else "")
    assert model.tensors[TABLE].path == str(target)
    assert model.engram is not None
    rows = np.array([[0, 900]])
    np.testing.assert_array_equal(
        model.engram.gather(rows).numpy(), tiny.values[TABLE][rows].reshape(1, -1)
    )


def test_linked_engram_shard(tiny: Any, model_dir: Path) -> None:
    paths = tiny.write_split(model_dir)
    paths[2].rename(model_dir.parent / SHARED)
    paths[2].symlink_to(f"../{SHARED}")
    assert open_model(paths[1]).tensors[TABLE].path == str(paths[2])


def test_engram_file_needs_no_split_keys(tiny: Any, model_dir: Path) -> None:
    paths = tiny.write_split(model_dir)
    alone = tiny.copy()
    alone.keys = {"general.architecture": ("str", "deepseek41")}
    alone.tensors = {TABLE: tiny.tensors[TABLE]}
    paths[2].unlink()
    alone.write(model_dir / SHARED)
    assert open_model(paths[0]).tensors[TABLE].num_bytes == len(tiny.tensors[TABLE][2])


def test_single_file_with_the_table_beside_it(
    tiny: Any, model_dir: Path, error_of: Callable[..., Any]
) -> None:
    table = tiny.copy()
    table.tensors = {TABLE: tiny.tensors[TABLE]}
    tiny.remove(TABLE)
    path = tiny.write(model_dir / "m.gguf")
    error = error_of(lambda: open_model(path))
    assert error.field == TABLE and "engram_path" in str(error)
    table.write(model_dir.parent / SHARED)
    assert open_model(path).config.engram is not None


def test_explicit_table_replaces_the_sets_own(tiny: Any, model_dir: Path, tmp_path: Path) -> None:
    paths = tiny.write_split(model_dir)
    other = tiny.copy().put(TABLE, tiny.values[TABLE] * 2)
    other.tensors = {TABLE: other.tensors[TABLE]}
    target = other.write(tmp_path / "other.gguf")
    model = open_model(paths[0], str(target))
    np.testing.assert_array_equal(model.decode(TABLE).numpy(), other.values[TABLE])


def test_several_tables_and_wrong_tables(
    tiny: Any, model_dir: Path, error_of: Callable[..., Any]
) -> None:
    paths = tiny.write_split(model_dir)
    paths[2].rename(model_dir / SHARED)
    shutil.copy(model_dir / SHARED, model_dir / "DeepSeek-V4.1-Flash-Engram-Q2_K.gguf")
    assert "several Engram tables" in str(error_of(lambda: open_model(paths[0])))
    assert open_model(paths[0], str(model_dir / SHARED)).layout == "U"
    error = error_of(lambda: open_model(paths[0], str(paths[1])))
    assert error.path == str(paths[1]) and "no Engram table" in str(error)
    error = error_of(lambda: open_model(model_dir / SHARED))
    assert "shared Engram table, not a model" in str(error)


def rewrite(tiny: Any, folder: Path, number: int, key: str, kind: str, value: Any) -> list[Path]:
    """Write a set of three and rewrite shard `number` with another key (None drops it)."""
    paths = tiny.write_split(folder)
    shard = tiny.copy()
    total = len(tiny.tensors)
    names = [h.name for h in read_file_set(paths[0]).headers[number].tensors]
    shard.tensors = {n: tiny.tensors[n] for n in names}
    shard.keys = {**(tiny.keys if number == 0 else {})}
    shard.set("split.no", "u16", number).set("split.count", "u16", 3)
    shard.set("split.tensors.count", "i32", total)
    if value is None:
        shard.drop(key)
    else:
        shard.set(key, kind, value)
    shard.write(paths[number])
    return paths


@pytest.mark.parametrize(
    ("number", "key", "kind", "value", "words"),
    [
        (1, "split.no", "u16", 2, "must have 1"),
        (1, "split.no", "u16", None, "missing"),
        (2, "split.no", "str", "two", "not a whole number"),
        (1, "split.count", "u16", 4, "must have 3"),
        (0, "split.count", "u16", 4, "its name must end in"),
        (0, "split.count", "u16", 60000, "at most 1024"),
        (0, "split.count", "i32", -1, "not a whole number"),
        (1, "split.tensors.count", "i32", 5, "5 tensors stated"),
        (0, "split.tensors.count", "i32", 1043, "1043 tensors stated"),
    ],
)
def test_wrong_split_keys(
    tiny: Any,
    model_dir: Path,
    error_of: Callable[..., Any],
    number: int,
    key: str,
    kind: str,
    value: Any,
    words: str,
) -> None:
    paths = rewrite(tiny, model_dir, number, key, kind, value)
    error = error_of(lambda: open_model(paths[0]))
    assert error.field == key and error.path == str(paths[number]) and words in str(error)


def test_total_is_optional(tiny: Any, model_dir: Path) -> None:
    paths = rewrite(tiny, model_dir, 1, "split.tensors.count", "i32", None)
    assert open_model(paths[2]).config.num_layers == 5


def test_a_tensor_in_two_shards(tiny: Any, model_dir: Path, error_of: Callable[..., Any]) -> None:
    paths = tiny.write_split(model_dir)
    shard = tiny.copy()
    shard.keys = {}
    shard.set("split.no", "u16", 1).set("split.count", "u16", 3)
    names = [h.name for h in read_file_set(paths[0]).headers[1].tensors]
    shard.tensors = {n: tiny.tensors[n] for n in ["output.weight", *names]}
    shard.write(paths[1])
    error = error_of(lambda: open_model(paths[0]))
    assert error.field == "output.weight" and str(paths[0]) in str(error)


def test_damaged_shard_is_named(tiny: Any, model_dir: Path, error_of: Callable[..., Any]) -> None:
    paths = tiny.write_split(model_dir)
    os.truncate(paths[1], paths[1].stat().st_size - 100)
    error = error_of(lambda: open_model(paths[0]))
    assert error.path == str(paths[1]) and "truncated" in str(error)


def test_last_shard_missing_of_a_model_without_engram(
    tiny: Any, model_dir: Path, error_of: Callable[..., Any]
) -> None:
    for key in [k for k in tiny.keys if ".ple." in k or ".engram." in k]:
        tiny.drop(key)
    paths = tiny.write_split(model_dir)
    paths[2].unlink()
    error = error_of(lambda: open_model(paths[0]))
    assert error.field == "split.count" and paths[2].name in str(error)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        open_model(tmp_path / "none.gguf")
