from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf import format as fmt
from memory.gguf.cursor import Cursor, read_value

Maker = Callable[[bytes], Cursor]


@pytest.fixture
def cursor_over(tmp_path: Path) -> Maker:
    def make(data: bytes) -> Cursor:
        path = tmp_path / "data"
        path.write_bytes(data)
        with open(path, "rb") as file:
            return Cursor("data", mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), len(data))

    return make


def test_integers_and_position(cursor_over: Maker) -> None:
    cursor = cursor_over(struct.pack("<IQB", 7, 2**63 + 5, 1))
    assert cursor.u32("a") == 7 and cursor.u64("b") == 2**63 + 5 and cursor.left == 1
    cursor.field = "here"
    with pytest.raises(ModelFileError, match=r"data: here: c needs 4 bytes at offset 12"):
        cursor.u32("c")
    assert cursor.position == 12


@pytest.mark.parametrize(
    ("kind", "form", "value"),
    [
        (0, "<B", 255),
        (1, "<b", -128),
        (2, "<H", 65535),
        (3, "<h", -32768),
        (4, "<I", 2**32 - 1),
        (5, "<i", -(2**31)),
        (6, "<f", 0.5),
        (10, "<Q", 2**64 - 1),
        (11, "<q", -(2**63)),
        (12, "<d", 1e300),
    ],
)
def test_numbers(cursor_over: Maker, kind: int, form: str, value: float) -> None:
    data = struct.pack(form, value)
    read = read_value(cursor_over(data), kind)
    assert read == value and type(read) is type(value)
    array = read_value(cursor_over(struct.pack("<IQ", kind, 3) + 3 * data), 9)
    assert isinstance(array, np.ndarray) and array.tolist() == [value] * 3


def test_booleans_and_strings(cursor_over: Maker) -> None:
    assert read_value(cursor_over(b"\1"), 7) is True
    flags = read_value(cursor_over(struct.pack("<IQ", 7, 3) + b"\0\1\0"), 9)
    assert isinstance(flags, np.ndarray) and flags.tolist() == [False, True, False]
    with pytest.raises(ModelFileError, match="neither 0 nor 1"):
        read_value(cursor_over(struct.pack("<IQ", 7, 3) + b"\0\1\2"), 9)
    text = "ä｜".encode()
    one = struct.pack("<Q", len(text)) + text
    assert read_value(cursor_over(one), 8) == "ä｜"
    assert read_value(cursor_over(struct.pack("<IQ", 8, 2) + one + bytes(8)), 9) == ["ä｜", ""]


def test_empty_arrays(cursor_over: Maker) -> None:
    assert read_value(cursor_over(struct.pack("<IQ", 8, 0)), 9) == []
    numbers = read_value(cursor_over(struct.pack("<IQ", 5, 0)), 9)
    assert isinstance(numbers, np.ndarray) and numbers.size == 0


def test_strings_of_all_arrays_share_one_limit(
    cursor_over: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fmt, "MAX_STRINGS", 5)
    array = struct.pack("<IQ", 8, 3) + bytes(24)
    cursor = cursor_over(array * 2)
    assert read_value(cursor, 9) == [""] * 3
    with pytest.raises(ModelFileError, match="3 strings"):
        read_value(cursor, 9)


def test_header_limit_is_told_from_truncation(cursor_over: Maker) -> None:
    cursor = cursor_over(bytes(16))
    cursor.file_size = 1000
    with pytest.raises(ModelFileError, match="longer than the limit"):
        cursor.need(100, "x")
    with pytest.raises(ModelFileError, match="truncated"):
        cursor.need(2000, "x")
