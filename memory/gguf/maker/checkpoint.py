"""Checkpoint folders: config.json and *.safetensors with the official tensor names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ConfigError, ModelFileError

Array = np.ndarray[Any, Any]

_TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
}


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a folder, by official name."""

    directory: Path
    tensors: Mapping[str, Array]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Array:
        if name not in self.tensors:
            raise self.error(name, "missing in the checkpoint")
        return self.tensors[name]

    def error(self, name: str, problem: str) -> ModelFileError:
        """Return an error about one tensor, to be raised."""
        return ModelFileError(self.directory, f"tensor {name}", problem)


def read_config(config: Mapping[str, Any] | Path) -> Mapping[str, Any]:
    """Return a configuration given as mapping or as the path of a JSON file.

    Raises:
        ModelFileError: the file cannot be read or is not a JSON object.
    """
    if not isinstance(config, Path):
        return config
    try:
        outer = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelFileError(config, "", f"cannot be read: {problem}") from problem
    if not isinstance(outer, dict):
        raise ModelFileError(config, "", "is not a JSON object")
    return outer


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read every *.safetensors file of a folder; BF16 is widened to F32, which loses nothing.

    Raises:
        ConfigError: the safetensors package is not installed.
        ModelFileError: there is no file, one cannot be read, or a tensor has another type than
            F64, F32, F16, BF16, I64, I32 and U8.
    """
    safetensors = import_safetensors()
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelFileError(directory, "", "no *.safetensors file")
    tensors: dict[str, Array] = {}
    for path in files:
        try:
            entries = safetensors.deserialize(path.read_bytes())
        except (OSError, safetensors.SafetensorError) as problem:
            raise ModelFileError(path, "", f"cannot be read: {problem}") from problem
        for name, entry in entries:
            if entry["dtype"] == "BF16":
                bits = np.frombuffer(entry["data"], np.uint16).astype(np.uint32) << 16
                value: Array = bits.view(np.float32)
            elif entry["dtype"] in _TYPES:
                value = np.frombuffer(entry["data"], _TYPES[entry["dtype"]])
            else:
                raise ModelFileError(
                    path, f"tensor {name}", f"type {entry['dtype']}; needs F32, F16 or BF16 weights"
                )
            tensors[name] = value.reshape(entry["shape"])
    return Checkpoint(directory, tensors)


def import_safetensors() -> Any:
    """Return the safetensors package, which only checkpoint folders need.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import safetensors
    except ModuleNotFoundError as missing:
        raise ConfigError(
            "checkpoint folders need the safetensors package; install it with "
            "`pip install safetensors`"
        ) from missing
    return safetensors
