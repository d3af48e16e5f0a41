"""Encodes or draws tensors and writes them as GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as QT
from gguf import GGUFWriter

from engine.errors import ConfigError
from memory.gguf.maker.checkpoint import Checkpoint
from memory.gguf.maker.publication import Publication
from memory.gguf.maker.storage import (
    TypePlan,
    encode,
    has_random_blocks,
    random_blocks,
    random_floats,
    random_std,
)
from memory.gguf.maker.tensor import Tensor

Array = np.ndarray[Any, Any]

RESIDUAL_WRITERS = (
    "attn_output_b.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
    "engram_kv.weight",
)
"""Ends of the names of matrices that write into the residual streams."""


@dataclass(frozen=True)
class Stored:
    """A tensor with its stored bytes, uint8 [..., row bytes]."""

    tensor: Tensor
    kind: QT
    data: Array = field(repr=False)


def store_all(
    tensors: Sequence[Tensor],
    plan: TypePlan,
    checkpoint: Checkpoint | None,
    rng: np.random.Generator,
    damp: float = 1.0,
) -> list[Stored]:
    """Encode every tensor from a checkpoint, or draw it at random if there is none.

    Args:
        tensors: what to store.
        plan: storage types.
        checkpoint: where the values come from, or None.
        rng: source of randomness.
        damp: factor on the random matrices that write into the residual streams; below 1 the model
            amplifies rounding less.

    Raises:
        ConfigError: a row does not fit its storage type, or there is no encoder.
        ModelFileError: the checkpoint lacks a tensor.
    """
    out = []
    for tensor in tensors:
        kind = plan.choose(tensor)
        if tensor.name.endswith(RESIDUAL_WRITERS):
            tensor = replace(tensor, gain=tensor.gain * damp)
        if checkpoint is None and has_random_blocks(kind):
            data = random_blocks(tensor, kind, random_std(tensor), rng)
        elif checkpoint is None:
            data = encode(tensor, random_floats(tensor, rng), kind)
        else:
            data = encode(tensor, tensor.gather(checkpoint), kind)
        out.append(Stored(tensor, kind, data))
    return out


def shard_paths(out: Path, count: int) -> list[Path]:
    """Return the file names of a set of `count` shards; one shard keeps the name."""
    if count == 1:
        return [out]
    return [out.with_name(f"{out.stem}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]


def assign_shards(stored: list[Stored], count: int) -> list[list[Stored]]:
    """Put the Engram table alone in the last shard and the rest in file order, of equal bytes.

    Raises:
        ConfigError: a shard would be empty.
    """
    if count == 1:
        return [stored]
    table = [s for s in stored if s.tensor.category == "engram"]
    rest = [s for s in stored if s.tensor.category != "engram"]
    parts = count - (1 if table else 0)
    if parts < 1 or len(rest) < parts:
        raise ConfigError(
            f"split {count}: needs at least {2 if table else 1} shards and a tensor for each"
        )
    ends = np.cumsum([s.data.nbytes for s in rest])
    where = np.minimum((ends - 1) * parts // ends[-1], parts - 1)
    shards = [[s for s, p in zip(rest, where, strict=True) if p == i] for i in range(parts)]
    if not all(shards):
        raise ConfigError(f"split {count}: one tensor is larger than a shard; use fewer shards")
    return shards + ([table] if table else [])


def write_gguf(
    path: Path,
    arch: str,
    stored: list[Stored],
    keys: Callable[[GGUFWriter], None],
    files: Publication,
    split: int = 1,
) -> list[Path]:
    """Write a file or a set of shards into `files` and return the final paths.

    Raises:
        ConfigError: the split does not work.
        OSError: a file cannot be written.
    """
    paths = shard_paths(path, split)
    shards = assign_shards(stored, split)
    for number, (shard, target) in enumerate(zip(shards, paths, strict=True)):
        writer = GGUFWriter(files.begin(target), arch)
        try:
            if number == 0:
                writer.add_string("general.name", path.stem)
                writer.add_quantization_version(2)
                keys(writer)
            else:  # like llama.cpp's split tool: only split.* in further shards
                del writer.kv_data[0]["general.architecture"]
            if split > 1:
                writer.add_uint16("split.no", number)
                writer.add_uint16("split.count", split)
                writer.add_int32("split.tensors.count", len(stored))
            write_tensors(writer, shard)
        finally:
            writer.close()
    return paths


def write_tensors(writer: GGUFWriter, shard: Sequence[Stored]) -> None:
    """Write the header, all keys and the tensors of one file."""
    for item in shard:
        if item.kind in (QT.F32, QT.F16):
            dtype = np.float32 if item.kind is QT.F32 else np.float16
            writer.add_tensor(item.tensor.name, item.data.view(dtype))
        else:
            writer.add_tensor(item.tensor.name, item.data, raw_dtype=item.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
