"""Checkpoint folders in the official layout: config.json and *.safetensors with official names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors.numpy import save_file

from engine.errors import ConfigError, ModelFileError
from memory.gguf.maker.engram_constants import engram_arrays, engram_primes
from memory.gguf.maker.files import Stored
from memory.gguf.maker.shape import Config
from memory.gguf.maker.storage import decode

Array = np.ndarray[Any, Any]
_KINDS = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
}


def read_safetensors(directory: Path) -> dict[str, Array]:
    """Return all tensors of all *.safetensors files; BF16 is widened to F32, which loses nothing.

    Raises:
        ModelFileError: there is no file, or a tensor has a type that cannot be converted.
    """
    out: dict[str, Array] = {}
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelFileError(directory, "", "no *.safetensors file")
    for path in files:
        for name, info in safetensors.deserialize(path.read_bytes()):
            if info["dtype"] == "BF16":
                bits = np.frombuffer(info["data"], np.uint16).astype(np.uint32) << 16
                value: Array = bits.view(np.float32)
            elif info["dtype"] in _KINDS:
                value = np.frombuffer(info["data"], _KINDS[info["dtype"]])
            else:
                raise ModelFileError(
                    path, f"tensor {name}", f"type {info['dtype']}; needs F32, F16 or BF16 weights"
                )
            out[name] = value.reshape(info["shape"])
    return out


def write_hf(
    directory: Path,
    outer: Mapping[str, Any],
    cfg: Config,
    stored: list[Stored],
    token_map: list[int],
) -> None:
    """Write the decoded values of `stored` as a checkpoint folder (F32).

    Raises:
        ConfigError: a stored tensor decodes to a value that is not finite.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows = [sum(layer) for layer in engram_primes(cfg)] if cfg.engram_layers else []
    weights: dict[str, Array] = {}
    for s in stored:
        value = decode(s.tensor, s.data, s.kind)
        if not np.isfinite(value).all():
            raise ConfigError(f"{s.tensor.name}: {s.kind.name} decodes to a value not finite")
        scattered = s.tensor.scatter(value, rows)
        weights.update({k: np.ascontiguousarray(v) for k, v in scattered.items()})
    save_file(weights, directory / "weights.safetensors")
    if cfg.engram_layers:
        save_file(engram_arrays(cfg, token_map), directory / "engram_tables.safetensors")
    written = json.loads(json.dumps(outer))
    if rows:
        written.get("text_config", written)["engram_num_embeddings"] = rows
    text = json.dumps(written, indent=1) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
