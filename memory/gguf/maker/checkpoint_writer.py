"""Writes the decoded values of stored tensors as a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ConfigError, ModelFileError
from memory.gguf.maker.checkpoint import Array, import_safetensors
from memory.gguf.maker.engram_constants import engram_arrays, engram_primes
from memory.gguf.maker.files import Stored
from memory.gguf.maker.publication import Publication
from memory.gguf.maker.shape import Config
from memory.gguf.maker.storage import decode


def write_checkpoint(
    directory: Path,
    outer: Mapping[str, Any],
    cfg: Config,
    stored: Sequence[Stored],
    token_map: list[int],
) -> None:
    """Write config.json, weights.safetensors (F32) and engram_tables.safetensors.

    Raises:
        ConfigError: a stored tensor decodes to a value that is not finite, or the safetensors
            package is not installed.
        ModelFileError: a file cannot be written.
    """
    import_safetensors()
    from safetensors.numpy import save

    rows = [sum(layer) for layer in engram_primes(cfg)] if cfg.engram_layers else []
    contents = {"weights.safetensors": save(_decoded(stored, rows))}
    if cfg.engram_layers:
        contents["engram_tables.safetensors"] = save(engram_arrays(cfg, token_map))
    written = json.loads(json.dumps(outer))
    if rows:
        written.get("text_config", written)["engram_num_embeddings"] = rows
    contents["config.json"] = (json.dumps(written, indent=1) + "\n").encode()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ModelFileError(directory, "", f"cannot be written: {problem.strerror}") from problem
    with Publication() as files:
        for name, data in contents.items():
            files.begin(directory / name).write_bytes(data)


def _decoded(stored: Sequence[Stored], rows: list[int]) -> dict[str, Array]:
    """Checkpoint tensors by official name; `rows` of the Engram layers' parts of the table."""
    weights: dict[str, Array] = {}
    for item in stored:
        value = decode(item.tensor, item.data, item.kind)
        if not np.isfinite(value).all():
            raise ConfigError(
                f"{item.tensor.name}: {item.kind.name} decodes to a value that is not finite"
            )
        scattered = item.tensor.scatter(value, rows)
        weights.update({name: np.ascontiguousarray(part) for name, part in scattered.items()})
    return weights
