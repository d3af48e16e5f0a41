"""Bounds-checked reading of header bytes: integers, strings and metadata values.

Every count and length is compared with the bytes that are left before anything is allocated, so a
damaged or hostile file is refused at once.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np

from engine.errors import ModelFileError
from memory.gguf import format as fmt

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


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
