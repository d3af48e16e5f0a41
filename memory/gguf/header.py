"""Read and check the header of one GGUF file: metadata and tensor directory.

Tensor data is never touched.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from math import prod

from engine.errors import ModelFileError
from memory.gguf import format as fmt
from memory.gguf.cursor import Cursor, read_value
from memory.gguf.format import quote
from memory.gguf.tensors import Header, TensorInfo, check_ranges


def read_metadata(cursor: Cursor, count: int) -> dict[str, object]:
    """Read `count` key-value pairs."""
    metadata: dict[str, object] = {}
    for number in range(count):
        cursor.field = f"metadata key {number}"
        key = cursor.text("name", fmt.MAX_KEY_BYTES)
        if not key:
            raise cursor.fail("the name is empty")
        cursor.field = quote(key)
        if key in metadata:
            raise cursor.fail("the key occurs twice")
        metadata[key] = read_value(cursor, cursor.u32("value type"))
    return metadata


def read_alignment(cursor: Cursor, metadata: Mapping[str, object]) -> int:
    """Return the alignment of tensor offsets in bytes."""
    cursor.field = "general.alignment"
    value = metadata.get("general.alignment", fmt.DEFAULT_ALIGNMENT)
    valid = type(value) is int and 0 < value <= fmt.MAX_ALIGNMENT and not value & (value - 1)
    if not valid:
        raise cursor.fail(
            f"{quote(str(value))} is not a power of two between 1 and {fmt.MAX_ALIGNMENT}"
        )
    assert isinstance(value, int)
    return value


def read_tensor(cursor: Cursor, number: int) -> tuple[str, str, tuple[int, ...], int, int]:
    """Read one directory entry: name, type, logical shape, relative offset, bytes."""
    cursor.field = f"tensor {number}"
    name = cursor.text("name", fmt.MAX_NAME_BYTES)
    if not name:
        raise cursor.fail("the name is empty")
    cursor.field = quote(name)
    rank = cursor.u32("number of dimensions")
    if not 1 <= rank <= fmt.MAX_DIMS:
        raise cursor.fail(f"{rank} dimensions; 1 to {fmt.MAX_DIMS} are allowed")
    extents = tuple(cursor.u64("dimension") for _ in range(rank))
    if 0 in extents:
        raise cursor.fail(f"dimensions {list(extents)} contain a zero")
    elements = prod(extents)
    if elements > fmt.MAX_ELEMENTS:
        raise cursor.fail(f"dimensions {list(extents)} overflow: {elements} elements")
    kind = cursor.u32("type")
    offset = cursor.u64("offset")
    if kind not in fmt.TYPE_NAMES:
        raise cursor.fail(
            f"unknown tensor type id {kind}; known are "
            + ", ".join(f"{name} ({number})" for number, name in sorted(fmt.TYPE_NAMES.items()))
        )
    quant_type = fmt.TYPE_NAMES[kind]
    block, size = fmt.BLOCKS[quant_type]
    if extents[0] % block:
        raise cursor.fail(
            f"row length {extents[0]} is not a multiple of {block}, the block of {quant_type}"
        )
    return name, quant_type, extents[::-1], offset, elements // block * size


def read_tensors(
    cursor: Cursor, count: int, alignment: int, file_index: int
) -> tuple[int, tuple[TensorInfo, ...]]:
    """Read the tensor directory; return the data section's offset and the tensors."""
    entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    for number in range(count):
        name, quant_type, shape, offset, num_bytes = read_tensor(cursor, number)
        if name in entries:
            raise cursor.fail("the tensor occurs twice")
        entries[name] = (quant_type, shape, offset, num_bytes)
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = tuple(
        TensorInfo(
            name=name,
            quant_type=quant_type,
            shape=shape,
            path=cursor.path,
            file_index=file_index,
            offset=data_offset + offset,
            num_bytes=num_bytes,
        )
        for name, (quant_type, shape, offset, num_bytes) in entries.items()
    )
    return data_offset, tensors


def check_start(cursor: Cursor) -> int:
    """Check magic and version; return the version."""
    cursor.field = "magic"
    start = bytes(cursor.data[:24])
    if start[:4] != fmt.MAGIC:
        if start.startswith(b"version https://git-"):
            raise cursor.fail("this is a Git LFS pointer, not the model; download the file itself")
        raise cursor.fail(f"found {start[:4]!r}, expected {fmt.MAGIC!r}; this is no GGUF file")
    cursor.position = 4
    cursor.field = "version"
    version = cursor.u32("version")
    if version not in fmt.VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in (1, *fmt.VERSIONS):
            raise cursor.fail("the file is big-endian; only little-endian GGUF is supported")
        raise cursor.fail(f"GGUF version {version}; supported are 2 and 3")
    return version


def open_regular(path: str) -> tuple[int, int]:
    """Open a regular file for reading; return its descriptor and its length in bytes.

    Raises:
        ModelFileError: the file is missing, unreadable or no regular file.
    """
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise ModelFileError(path, "", f"cannot open the file: {reason}") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ModelFileError(path, "", "not a regular file; give the path of a GGUF file")
    return fd, status.st_size


def read_header(path: str, file_index: int = 0) -> Header:
    """Read and check the header of the GGUF file at `path`.

    Only the header is read (through a temporary map of at most `MAX_HEADER_BYTES`).

    Args:
        path: the file.
        file_index: number of the file in its shard set, copied into every `TensorInfo`.

    Raises:
        ModelFileError: the file cannot be read or its header is damaged; names the field.
    """
    fd, file_size = open_regular(path)
    try:
        if file_size < 24:
            raise ModelFileError(path, "header", f"{file_size} bytes are too short for a GGUF file")
        data = mmap.mmap(fd, min(file_size, fmt.MAX_HEADER_BYTES), access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:
        raise ModelFileError(path, "header", f"cannot map the header: {problem}") from None
    finally:
        os.close(fd)
    with data:
        cursor = Cursor(path, data, file_size)
        version = check_start(cursor)
        cursor.field = "tensor count"
        num_tensors = cursor.u64("count")
        # A directory entry has a length, a name byte, a rank, a dimension, a type and an offset.
        if num_tensors > min(fmt.MAX_TENSORS, file_size // 33):
            raise cursor.fail(
                f"{num_tensors} tensors cannot be in a file of {file_size} bytes; the file is "
                "truncated or damaged"
            )
        cursor.field = "metadata count"
        num_keys = cursor.u64("count")
        # A pair has a length, a name byte, a type and a value byte.
        if num_keys > min(fmt.MAX_KEYS, file_size // 14):
            raise cursor.fail(
                f"{num_keys} keys cannot be in a file of {file_size} bytes; the file is "
                "truncated or damaged"
            )
        metadata = read_metadata(cursor, num_keys)
        alignment = read_alignment(cursor, metadata)
        data_offset, tensors = read_tensors(cursor, num_tensors, alignment, file_index)
    header = Header(
        path=path,
        file_size=file_size,
        version=version,
        alignment=alignment,
        data_offset=data_offset,
        metadata=metadata,
        tensors=tensors,
    )
    check_ranges(header)
    return header
