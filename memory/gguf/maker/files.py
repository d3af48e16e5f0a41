"""Encodes or draws tensors and writes them as GGUF files, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as QT
from gguf import GGUFWriter

from engine.errors import ConfigError, ModelFileError
from memory.gguf.maker.storage import (
    F16_SCALES,
    TypePlan,
    encode,
    random_blocks,
    random_floats,
    random_std,
)
from memory.gguf.maker.tensor_table import WRITERS, Tensor

Array = np.ndarray[Any, Any]


@dataclass
class Stored:
    """A tensor with its stored bytes, uint8 [..., row bytes]."""

    tensor: Tensor
    kind: QT
    data: Array = field(repr=False)


def store_all(
    tensors: list[Tensor],
    plan: TypePlan,
    hf: Mapping[str, Array] | None,
    rng: np.random.Generator,
    damp: float = 1.0,
) -> list[Stored]:
    """Encode every tensor from a checkpoint, or draw it at random if there is none.

    Args:
        tensors: what to store.
        plan: storage types.
        hf: checkpoint tensors by official name, or None.
        rng: source of randomness.
        damp: factor on the random matrices that write into the residual streams; below 1 the model
            amplifies rounding less.
    """
    out = []
    for tensor in tensors:
        kind = plan.choose(tensor)
        if tensor.name.endswith(WRITERS):
            tensor = replace(tensor, gain=tensor.gain * damp)
        if hf is None and (kind in F16_SCALES or kind in (QT.IQ1_M, QT.MXFP4, QT.NVFP4)):
            data = random_blocks(tensor, kind, random_std(tensor), rng)
        else:
            value = random_floats(tensor, rng) if hf is None else tensor.gather(hf)
            data = encode(tensor, value, kind)
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
        ConfigError: there are fewer tensors than shards.
    """
    if count == 1:
        return [stored]
    table = [s for s in stored if s.tensor.klass == "engram"]
    rest = [s for s in stored if s.tensor.klass != "engram"]
    parts = count - (1 if table else 0)
    if parts < 1 or len(rest) < parts:
        raise ConfigError(
            f"split {count}: needs at least {2 if table else 1} shards and a tensor for each"
        )
    ends = np.cumsum([s.data.nbytes for s in rest])
    where = np.minimum((ends - 1) * parts // ends[-1], parts - 1)
    shards = [[s for s, p in zip(rest, where, strict=True) if p == i] for i in range(parts)]
    return shards + ([table] if table else [])


def write_gguf(
    path: Path,
    arch: str,
    stored: list[Stored],
    keys: Callable[[GGUFWriter], None],
    split: int = 1,
) -> list[Path]:
    """Write a file or a set of shards and return the paths.

    Each file is written under a temporary name and renamed when complete, so a full disk or a
    kill leaves no half file under the real name.

    Raises:
        ConfigError: the split does not work.
        ModelFileError: a file cannot be written.
    """
    paths = shard_paths(path, split)
    shards = assign_shards(stored, split)
    for number, (shard, target) in enumerate(zip(shards, paths, strict=True)):
        temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            write_shard(temporary, arch, path.stem, shard, keys, number, split, len(stored))
            temporary.replace(target)
        except OSError as problem:
            raise ModelFileError(
                target, "", f"cannot be written: {problem.strerror or problem}"
            ) from problem
        finally:
            temporary.unlink(missing_ok=True)
    return paths


def write_shard(
    path: Path,
    arch: str,
    name: str,
    shard: list[Stored],
    keys: Callable[[GGUFWriter], None],
    number: int,
    split: int,
    total: int,
) -> None:
    """Write one file; all keys but split.* stand in the first shard only."""
    writer = GGUFWriter(path, arch)
    try:
        if number == 0:
            writer.add_string("general.name", name)
            writer.add_quantization_version(2)
            keys(writer)
        else:
            del writer.kv_data[0]["general.architecture"]
        if split > 1:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", split)
            writer.add_int32("split.tensors.count", total)
        for s in shard:
            if s.kind in (QT.F32, QT.F16):
                dtype = np.float32 if s.kind is QT.F32 else np.float16
                writer.add_tensor(s.tensor.name, s.data.view(dtype))
            else:
                writer.add_tensor(s.tensor.name, s.data, raw_dtype=s.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
