"""A GGUF file as an editable set of keys and tensors.

`TinyFile.write` writes with the `gguf` package, the independent reference for valid files;
`TinyFile.to_bytes` lays the bytes out itself and says where each field lies, so that a test can
damage exactly one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

KINDS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<B"),
    "str": (8, ""),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
"""Kind -> GGUF value type and struct format; "[u32]" stands for an array."""


@dataclass
class TinyFile:
    """Keys as (kind, value) and tensors as (type, logical shape, bytes), both in file order."""

    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    arch: str = "deepseek41"

    def copy(self) -> TinyFile:
        return deepcopy(self)

    def set(self, key: str, kind: str, value: Any) -> TinyFile:
        """Set a key; without a dot-separated namespace of its own it gets the architecture's."""
        self.keys[self.full(key)] = (kind, value)
        return self

    def drop(self, *keys: str) -> TinyFile:
        for key in keys:
            del self.keys[self.full(key)]
        return self

    def full(self, key: str) -> str:
        own = key.startswith(("general.", "tokenizer.", "split.", "foreign.", self.arch))
        return key if own else f"{self.arch}.{key}"

    def put(self, name: str, value: np.ndarray, kind: str = "F32") -> TinyFile:
        """Store values, encoded by the gguf package; `values` holds what must be read back."""
        quant = GGMLQuantizationType[kind]
        stored = quants.quantize(value.astype(np.float32), quant)
        self.values[name] = quants.dequantize(stored, quant).astype(np.float32).reshape(value.shape)
        self.tensors[name] = (kind, value.shape, stored.tobytes())
        return self

    def store(self, name: str, kind: str, shape: tuple[int, ...], data: bytes) -> TinyFile:
        self.tensors[name] = (kind, shape, data)
        return self

    def rename(self, old: str, new: str) -> TinyFile:
        """Store a tensor under another name; `values` knows it under both."""
        self.tensors = {new if n == old else n: t for n, t in self.tensors.items()}
        if old in self.values:
            self.values[new] = self.values[old]
        return self

    def remove(self, *names: str) -> TinyFile:
        for name in names:
            del self.tensors[name]
        return self

    # ---- writing

    def write(self, path: Path) -> Path:
        self._write(path, self.keys, self.tensors)
        return path

    def write_split(self, folder: Path, count: int = 3, prefix: str = "tiny") -> list[Path]:
        """Write shards with the Engram table alone in the last one."""
        table = [n for n in self.tensors if "token_embd" in n and n.startswith("per_layer")]
        rest = [n for n in self.tensors if n not in table]
        size = -(-len(rest) // (count - 1))
        groups = [rest[i * size : (i + 1) * size] for i in range(count - 1)] + [table]
        paths = []
        for number, names in enumerate(groups):
            split: dict[str, tuple[str, Any]] = {
                "split.no": ("u16", number),
                "split.count": ("u16", count),
                "split.tensors.count": ("i32", len(self.tensors)),
            }
            keys = {**(self.keys if number == 0 else {}), **split}
            path = folder / f"{prefix}-{number + 1:05d}-of-{count:05d}.gguf"
            self._write(path, keys, {n: self.tensors[n] for n in names})
            paths.append(path)
        return paths

    def _write(
        self,
        path: Path,
        keys: Mapping[str, tuple[str, Any]],
        tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    ) -> None:
        writer = GGUFWriter(path, self.arch)
        writer.kv_data[0].clear()
        for key, (kind, value) in keys.items():
            if kind.startswith("["):
                element = GGUFValueType(KINDS[kind[1:-1]][0])
                writer.add_key_value(key, list(value), GGUFValueType.ARRAY, element)
            else:
                writer.add_key_value(key, value, GGUFValueType(KINDS[kind][0]))
        for name, (kind, shape, data) in tensors.items():
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
            width = shape[-1] // block * size
            raw = np.frombuffer(data, np.uint8).reshape(*shape[:-1], width)
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def to_bytes(self, alignment: int = 32) -> tuple[bytearray, dict[str, int]]:
        """Return the file's bytes and the offset of every field by label.

        Labels: magic, version, num_tensors, num_keys, data; of a key `key:NAME:` + length, name,
        type, value (for arrays also element, count); of a tensor `tensor:NAME:` + length, name,
        rank, dims, type, offset.
        """
        out = bytearray()
        marks: dict[str, int] = {}

        def add(label: str, data: bytes) -> None:
            marks[label] = len(out)
            out.extend(data)

        def add_text(label: str, text: str) -> None:
            data = text.encode()
            add(f"{label}:length", struct.pack("<Q", len(data)))
            add(f"{label}:name", data)

        add("magic", b"GGUF")
        add("version", struct.pack("<I", 3))
        add("num_tensors", struct.pack("<Q", len(self.tensors)))
        add("num_keys", struct.pack("<Q", len(self.keys)))
        for key, (kind, value) in self.keys.items():
            label = f"key:{key}"
            add_text(label, key)
            if kind.startswith("["):
                number, form = KINDS[kind[1:-1]]
                add(f"{label}:type", struct.pack("<I", 9))
                add(f"{label}:element", struct.pack("<I", number))
                add(f"{label}:count", struct.pack("<Q", len(value)))
                add(f"{label}:value", b"".join(encode(form, v) for v in value))
            else:
                number, form = KINDS[kind]
                add(f"{label}:type", struct.pack("<I", number))
                add(f"{label}:value", encode(form, value))
        position = 0
        for name, (kind, shape, data) in self.tensors.items():
            label = f"tensor:{name}"
            add_text(label, name)
            add(f"{label}:rank", struct.pack("<I", len(shape)))
            add(f"{label}:dims", struct.pack(f"<{len(shape)}Q", *shape[::-1]))
            add(f"{label}:type", struct.pack("<I", GGMLQuantizationType[kind].value))
            add(f"{label}:offset", struct.pack("<Q", position))
            position += -(-len(data) // alignment) * alignment
        marks["end"] = len(out)
        for _, _, data in self.tensors.values():
            out.extend(bytes(-len(out) % alignment))
            marks.setdefault("data", len(out))
            out.extend(data)
        return out, marks


def encode(form: str, value: Any) -> bytes:
    if form:
        return struct.pack(form, value)
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


@pytest.fixture(scope="session")
def tiny_file() -> type[TinyFile]:
    """Make an empty file: tiny_file(arch="deepseek41")."""
    return TinyFile
