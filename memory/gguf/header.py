"""Parse and check the header of one GGUF file: metadata and tensor directory.

Every count and length is compared with the bytes that are left before anything is allocated, so a
damaged or hostile file is refused at once. Tensor data is never touched.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from engine.errors import ModelFileError
from memory.gguf import format as fmt
from memory.gguf.format import quote

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """Where one tensor lies and how it is stored.

    A tensor that a layout states as a product of two stored ones has them in `factors`; its own
    `quant_type` is F32 then, and `path` and `offset` are those of the first factor.
    """

    name: str
    """Tensor name."""
    quant_type: str
    """GGUF type name, such as "IQ2_XXS"."""
    shape: tuple[int, ...]
    """Logical shape, row-major: the last axis is contiguous (GGUF states the reverse)."""
    path: str
    """File that holds the data."""
    file_index: int
    """Number of that file in its shard set."""
    offset: int
    """Absolute byte offset in the file."""
    num_bytes: int
    """Bytes of the tensor's data."""
    factors: tuple[TensorInfo, ...] = ()
    """Stored tensors whose elementwise product this is; empty for a stored tensor."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (last axis)."""
        return fmt.row_bytes(self.quant_type, self.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything before the data of one GGUF file."""

    path: str
    """The file."""
    file_size: int
    """Its length in bytes."""
    version: int
    """GGUF version, 2 or 3."""
    alignment: int
    """Alignment of tensor offsets in bytes."""
    data_offset: int
    """Absolute byte offset of the data section."""
    metadata: Mapping[str, object]
    """Keys in file order; numeric arrays are numpy arrays, string arrays are lists."""
    tensors: tuple[TensorInfo, ...]
    """Tensors in file order."""


class Cursor:
    """A bounds-checked read position in the header bytes of `path`."""

    def __init__(self, path: str, data: mmap.mmap, file_size: int) -> None:
        self.path = path
        self.data = data
        self.file_size = file_size
        self.position = 0
        self.field = "header"
        self.strings_left = fmt.MAX_STRINGS

    def fail(self, problem: str) -> ModelFileError:
        """Return the error for the field being read."""
        return ModelFileError(self.path, self.field, problem)

    @property
    def left(self) -> int:
        """Header bytes not yet read."""
        return len(self.data) - self.position

    def need(self, count: int, what: str) -> int:
        """Check that `count` bytes are left, step over them and return where they begin."""
        if count > self.left:
            if len(self.data) < self.file_size and count <= self.file_size - self.position:
                raise self.fail(f"header is longer than the limit of {fmt.MAX_HEADER_BYTES} bytes")
            raise self.fail(
                f"{what} needs {count} bytes at offset {self.position}, but the file ends at "
                f"{self.file_size}; the file is truncated or damaged"
            )
        start = self.position
        self.position += count
        return start

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int(U32.unpack_from(self.data, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int(U64.unpack_from(self.data, self.need(8, what))[0])

    def text(self, what: str, limit: int) -> str:
        """Read a length-prefixed UTF-8 string of at most `limit` bytes."""
        length = self.u64(f"length of {what}")
        if length > limit:
            raise self.fail(f"{what} has a length of {length} bytes; at most {limit} are allowed")
        start = self.need(length, what)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8") from None

    def texts(self, count: int) -> list[str]:
        """Read `count` strings of an array; local variables keep a large vocabulary fast."""
        if count > self.strings_left:
            raise self.fail(
                f"{count} strings; at most {fmt.MAX_STRINGS} are allowed in the metadata of a file"
            )
        self.strings_left -= count
        data, end, position, unpack = self.data, len(self.data), self.position, U64.unpack_from
        values: list[str] = []
        try:
            for _ in range(count):
                if position + 8 > end:
                    break
                length = unpack(data, position)[0]
                start = position + 8
                position = start + length
                if position > end or length > fmt.MAX_STRING_BYTES:
                    break
                values.append(data[start:position].decode("utf-8"))
        except UnicodeDecodeError:
            raise self.fail(f"string {len(values)} of the array is not valid UTF-8") from None
        if len(values) < count:
            raise self.fail(
                f"string {len(values)} of {count} runs past the end of the header; the file is "
                "truncated or damaged"
            )
        self.position = position
        return values


def read_value(cursor: Cursor, kind: int, depth: int = 0) -> object:
    """Read one metadata value of type id `kind`."""
    if kind == fmt.STRING:
        return cursor.text("string value", fmt.MAX_STRING_BYTES)
    if kind == fmt.ARRAY:
        return read_array(cursor, depth + 1)
    if kind not in fmt.SCALARS:
        raise cursor.fail(f"unknown value type {kind}; known are 0 to 12")
    dtype = fmt.SCALARS[kind]
    start = cursor.need(dtype.itemsize, "value")
    value = np.frombuffer(cursor.data[start : start + dtype.itemsize], dtype)[0].item()
    if kind == fmt.BOOL:
        if value > 1:
            raise cursor.fail(f"a boolean is {value}; it must be 0 or 1")
        return bool(value)
    return value


def read_array(cursor: Cursor, depth: int) -> object:
    """Read an array: numpy for numbers, a list of strings, or a list of arrays."""
    if depth > fmt.MAX_ARRAY_DEPTH:
        raise cursor.fail(f"arrays are nested deeper than {fmt.MAX_ARRAY_DEPTH}")
    kind = cursor.u32("array type")
    count = cursor.u64("array length")
    smallest = {fmt.STRING: 8, fmt.ARRAY: 12}.get(kind)
    if smallest is None:
        if kind not in fmt.SCALARS:
            raise cursor.fail(f"unknown array element type {kind}; known are 0 to 12")
        smallest = fmt.SCALARS[kind].itemsize
    if count > cursor.left // smallest:
        raise cursor.fail(
            f"array of {count} elements does not fit the {cursor.left} bytes that are left; the "
            "file is truncated or damaged"
        )
    if kind == fmt.STRING:
        return cursor.texts(count)
    if kind == fmt.ARRAY:
        if count > fmt.MAX_NESTED_ARRAYS:
            raise cursor.fail(f"array of {count} arrays; {fmt.MAX_NESTED_ARRAYS} are allowed")
        return [read_array(cursor, depth + 1) for _ in range(count)]
    dtype = fmt.SCALARS[kind]
    start = cursor.need(count * dtype.itemsize, "array")
    values = np.frombuffer(cursor.data[start : cursor.position], dtype)
    if kind == fmt.BOOL:
        if count and values.max() > 1:
            raise cursor.fail("an array of booleans holds a byte that is neither 0 nor 1")
        return values.view(np.bool_)
    return values


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


def check_ranges(header: Header) -> None:
    """Check that the tensors' bytes are aligned, inside the file and do not overlap.

    Raises:
        ModelFileError: names the tensor (or both) and the offsets.
    """
    previous: TensorInfo | None = None
    for info in sorted(header.tensors, key=lambda t: t.offset):
        field = quote(info.name)
        if (info.offset - header.data_offset) % header.alignment:
            raise ModelFileError(
                header.path,
                field,
                f"offset {info.offset - header.data_offset} is not a multiple of the alignment "
                f"{header.alignment}",
            )
        if info.offset + info.num_bytes > header.file_size:
            raise ModelFileError(
                header.path,
                field,
                f"its data ends at byte {info.offset + info.num_bytes}, but the file has "
                f"{header.file_size}; the file is truncated or damaged, download it again",
            )
        if previous is not None and info.offset < previous.offset + previous.num_bytes:
            raise ModelFileError(
                header.path,
                field,
                f"its data at byte {info.offset} overlaps {quote(previous.name)}, which ends at "
                f"{previous.offset + previous.num_bytes}",
            )
        previous = info


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
            raise cursor.fail(f"{num_tensors} tensors cannot be in a file of {file_size} bytes")
        cursor.field = "metadata count"
        num_keys = cursor.u64("count")
        # A pair has a length, a name byte, a type and a value byte.
        if num_keys > min(fmt.MAX_KEYS, file_size // 14):
            raise cursor.fail(f"{num_keys} keys cannot be in a file of {file_size} bytes")
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
