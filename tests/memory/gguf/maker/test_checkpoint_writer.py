"""Checkpoint folders written from stored tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QT

from engine.errors import ConfigError, ModelFileError
from memory.gguf.maker import make_random
from memory.gguf.maker.checkpoint import read_checkpoint
from memory.gguf.maker.checkpoint_writer import write_checkpoint
from memory.gguf.maker.files import Stored
from memory.gguf.maker.shape import Config
from memory.gguf.maker.tensor import Tensor


def test_folder_is_complete(config: dict[str, Any], tmp_path: Path) -> None:
    make_random(config, tmp_path / "m.gguf", seed=2, hf_out=tmp_path / "deep" / "hf")
    folder = tmp_path / "deep" / "hf"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "engram_tables.safetensors",
        "weights.safetensors",
    ]
    checkpoint = read_checkpoint(folder)
    written = json.loads((folder / "config.json").read_text())
    rows = written["text_config"].pop("engram_num_embeddings")
    config["text_config"].pop("engram_num_embeddings")
    assert written == config
    assert rows == [len(checkpoint[f"layers.{n}.engram.embed.weight"]) for n in (0, 2)]
    assert rows == checkpoint["primes"].sum(axis=(1, 2)).tolist()


def item(value: float) -> Stored:
    data = np.full((1, 32), value, np.float32).view(np.uint8)
    return Stored(Tensor("t", (1, 32), "attention", ("t",)), QT.F32, data)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(value: float, config: dict[str, Any], tmp_path: Path) -> None:
    cfg = Config.from_mapping(config)
    with pytest.raises(ConfigError, match="t: F32 decodes to a value that is not finite"):
        write_checkpoint(tmp_path / "hf", config, cfg, [item(value)], [0] * 300)
    assert not (tmp_path / "hf").exists()


def test_folder_that_cannot_be_made(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("a file")
    with pytest.raises(ModelFileError, match="hf: cannot be written"):
        write_checkpoint(tmp_path / "hf", config, Config.from_mapping(config), [item(1)], [0] * 300)
