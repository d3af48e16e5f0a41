from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf.format import BLOCKS
from memory.gguf.header import read_header


def test_reads_what_the_gguf_package_wrote(tiny: Any, tmp_path: Path) -> None:
    tiny.set("foreign.u8", "u8", 200).set("foreign.i8", "i8", -7).set("foreign.u16", "u16", 65535)
    tiny.set("foreign.i16", "i16", -300).set("foreign.i32", "i32", -(2**31))
    tiny.set("foreign.u64", "u64", 2**64 - 1).set("foreign.i64", "i64", -(2**63))
    tiny.set("foreign.f64", "f64", 1e-300).set("foreign.text", "str", "Grüße ｜ 😀")
    tiny.set("foreign.longs", "[u64]", [2**63 + 1, 76632096046245])
    header = read_header(str(tiny.write(tmp_path / "m.gguf")), 4)
    for key, (kind, value) in tiny.keys.items():
        read = header.metadata[key]
        if kind == "f32":
            assert read == np.float32(value)
        elif kind.startswith("[") and kind != "[str]":
            assert isinstance(read, np.ndarray) and read.tolist() == list(value)
        else:
            assert read == value and type(read) is type(value)
    assert (header.version, header.alignment) == (3, 32)
    for info in header.tensors:
        kind, shape, data = tiny.tensors[info.name]
        assert (info.quant_type, info.shape, info.num_bytes) == (kind, shape, len(data))
        assert info.file_index == 4 and info.path == header.path
        with open(header.path, "rb") as file:
            file.seek(info.offset)
            assert file.read(info.num_bytes) == data


def test_own_bytes_equal_the_gguf_packages(tiny: Any, tmp_path: Path) -> None:
    written = tiny.write(tmp_path / "m.gguf").read_bytes()
    assert bytes(tiny.to_bytes()[0]) == written[: len(tiny.to_bytes()[0])]


def test_version_two_and_another_alignment(tiny: Any, tmp_path: Path) -> None:
    tiny.keys = {"general.alignment": ("u32", 128), **tiny.keys}
    data, marks = tiny.to_bytes(alignment=128)
    data[marks["version"]] = 2
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    header = read_header(str(path))
    assert (header.version, header.alignment, header.data_offset) == (2, 128, marks["data"])


def test_every_type_known_to_gguf_is_sized(tiny: Any, tmp_path: Path) -> None:
    for width in (256, 1280, 8192):
        for name, (block, size) in BLOCKS.items():
            tiny.store(f"x.{name}.{width}", name, (3, width), bytes(3 * width // block * size))
    data, _ = tiny.to_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    for info in read_header(str(path)).tensors:
        assert info.num_bytes == len(tiny.tensors[info.name][2])
        assert info.row_bytes * int(np.prod(info.shape[:-1])) == info.num_bytes


Patch = tuple[str, str, Any]
ALIGN, TOKENS, MAP = "general.alignment", "tokenizer.ggml.tokens", "deepseek41.engram.token_map"
Q_A = "tensor:blk.1.attn_q_a.weight"
NORM = "tensor:output_norm.weight"

# label of the damaged field, struct format and value, field the error names, words it says
DAMAGE: list[tuple[str, str, Any, str, str]] = [
    ("magic", "<4s", b"GGML", "magic", "GGUF"),
    ("magic", "<24s", b"version https://git-lfs.", "magic", "LFS pointer"),
    ("version", "<I", 1, "version", "version 1"),
    ("version", "<I", 4, "version", "supported are 2 and 3"),
    ("version", ">I", 3, "version", "big-endian"),
    ("version", ">I", 2, "version", "big-endian"),
    ("num_tensors", "<Q", 2**60, "tensor count", str(2**60)),
    ("num_tensors", "<Q", 2**64 - 1, "tensor count", "cannot be in a file"),
    ("num_keys", "<Q", 2**60, "metadata count", str(2**60)),
    ("num_keys", "<Q", 2**32, "metadata count", "cannot be in a file"),
    ("key:general.name:length", "<Q", 2**60, "metadata key 1", "at most 65535"),
    ("key:general.name:length", "<Q", 0, "metadata key 1", "empty"),
    ("key:general.name:name", "<5s", b"\xff\xfe\xfd\xfc\xfb", "metadata key 1", "UTF-8"),
    ("key:general.name:type", "<I", 13, "general.name", "unknown value type 13"),
    ("key:general.name:type", "<I", 2**32 - 1, "general.name", "unknown value type"),
    ("key:general.name:value", "<Q", 2**60, "general.name", "at most"),
    ("key:general.name:value", "<Q", 2**24, "general.name", "truncated or damaged"),
    ("key:general.name:value", "<Q4s", (4, b"\xc3\x28ab"), "general.name", "UTF-8"),
    ("key:deepseek41.expert_weights_norm:value", "<B", 2, "expert_weights_norm", "0 or 1"),
    (f"key:{TOKENS}:count", "<Q", 2**60, TOKENS, "does not fit"),
    (f"key:{TOKENS}:count", "<Q", 3000, TOKENS, "runs past the end"),
    (f"key:{TOKENS}:element", "<I", 99, TOKENS, "element type 99"),
    (f"key:{TOKENS}:value", "<Q", 2**63, TOKENS, "string 0"),
    (f"key:{TOKENS}:value", "<Q4s", (4, b"\xff\xff\xff\xff"), TOKENS, "UTF-8"),
    (f"key:{MAP}:count", "<Q", 2**62, MAP, "does not fit"),
    (f"key:{MAP}:element", "<I", 9, MAP, "array"),
    (f"{Q_A}:length", "<Q", 2**40, "tensor", "at most 255"),
    (f"{Q_A}:length", "<Q", 0, "tensor", "empty"),
    (f"{Q_A}:rank", "<I", 0, "blk.1.attn_q_a.weight", "0 dimensions"),
    (f"{Q_A}:rank", "<I", 5, "blk.1.attn_q_a.weight", "5 dimensions"),
    (f"{Q_A}:rank", "<I", 2**31, "blk.1.attn_q_a.weight", "dimensions"),
    (f"{Q_A}:dims", "<QQ", (32, 0), "blk.1.attn_q_a.weight", "zero"),
    (f"{Q_A}:dims", "<QQ", (2**40, 2**40), "blk.1.attn_q_a.weight", "overflow"),
    (f"{Q_A}:dims", "<QQ", (2**63, 2), "blk.1.attn_q_a.weight", "overflow"),
    (f"{Q_A}:dims", "<QQ", (32, 2**40), "blk.1.attn_q_a.weight", "truncated"),
    (f"{Q_A}:dims", "<QQ", (33, 64), "blk.1.attn_q_a.weight", "multiple of 32"),
    (f"{Q_A}:type", "<I", 200, "blk.1.attn_q_a.weight", "type id 200"),
    (f"{Q_A}:type", "<I", 4, "blk.1.attn_q_a.weight", "type id 4"),
    (f"{Q_A}:type", "<I", 12, "blk.1.attn_q_a.weight", "multiple of 256"),
    (f"{Q_A}:offset", "<Q", 0, "", "overlaps"),
    (f"{Q_A}:offset", "<Q", 7, "blk.1.attn_q_a.weight", "alignment"),
    (f"{Q_A}:offset", "<Q", 2**60, "blk.1.attn_q_a.weight", "truncated"),
    (f"{Q_A}:offset", "<Q", 2**64 - 32, "blk.1.attn_q_a.weight", "truncated"),
]


@pytest.mark.parametrize(("label", "form", "value", "field", "words"), DAMAGE)
def test_damage_is_named(
    tiny: Any,
    tmp_path: Path,
    error_of: Callable[..., Any],
    label: str,
    form: str,
    value: Any,
    field: str,
    words: str,
) -> None:
    data, marks = tiny.to_bytes()
    values = value if isinstance(value, tuple) else (value,)
    struct.pack_into(form, data, marks[label], *values)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    start = time.perf_counter()
    error = error_of(lambda: read_header(str(path)))
    assert time.perf_counter() - start < 5
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert error.path == str(path)
    assert field in error.field and words in str(error)


@pytest.mark.parametrize("value", [0, 3, 48, 2**31])
def test_alignment_must_be_a_power_of_two(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any], value: int
) -> None:
    tiny.set(ALIGN, "u32", value)
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.to_bytes()[0])
    error = error_of(lambda: read_header(str(path)))
    assert error.field == ALIGN and "power of two" in str(error)


@pytest.mark.parametrize(("kind", "value"), [("str", "32"), ("f32", 32.0), ("bool", True)])
def test_alignment_must_be_an_integer(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any], kind: str, value: Any
) -> None:
    tiny.set(ALIGN, kind, value)
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.to_bytes()[0])
    assert error_of(lambda: read_header(str(path))).field == ALIGN


def test_duplicate_key_and_duplicate_tensor(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    path = tmp_path / "m.gguf"
    data, marks = tiny.set("general.nam2", "str", "x").to_bytes()
    at = marks["key:general.nam2:name"]
    data[at : at + 12] = b"general.name"
    path.write_bytes(data)
    error = error_of(lambda: read_header(str(path)))
    assert error.field == "general.name" and "twice" in str(error)
    data, marks = tiny.to_bytes()
    at = marks["tensor:blk.2.attn_norm.weight:name"]
    data[at : at + 21] = b"blk.1.attn_norm.weight"[:21]
    path.write_bytes(data)
    error = error_of(lambda: read_header(str(path)))
    assert error.field == "blk.1.attn_norm.weight" and "twice" in str(error)


def test_names_from_the_file_cannot_break_the_message(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    data, marks = tiny.set("foreign.aaaaaaaa", "u8", 1).to_bytes()
    at = marks["key:foreign.aaaaaaaa:name"]
    data[at : at + 16] = b"a\nb\x1b[31m\x00\t\rxxxxx"[:16]
    struct.pack_into("<I", data, marks["key:foreign.aaaaaaaa:type"], 77)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert "\\n" in error_of(lambda: read_header(str(path))).field


def test_truncated_anywhere(tiny: Any, tmp_path: Path, error_of: Callable[..., Any]) -> None:
    data, marks = tiny.to_bytes()
    path = tmp_path / "m.gguf"
    rng = np.random.default_rng(5)
    places = [0, 1, 4, 8, 23, 24, marks["end"] - 1, marks["end"], marks["data"], len(data) - 1]
    for size in [*places, *rng.integers(0, len(data), 40).tolist()]:
        path.write_bytes(data[:size])
        error = error_of(lambda: read_header(str(path)))
        assert error.path == str(path) and error.field


def test_nested_arrays_are_read_to_a_limit(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    def nested(depth: int) -> bytes:
        return struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ3H", 2, 3, 1, 2, 3)

    path = tmp_path / "m.gguf"
    for depth, fine in ((0, True), (1, True), (2, False), (1000, False)):
        data, marks = tiny.copy().set("foreign.deep", "u8", 1).to_bytes()
        at = marks["key:foreign.deep:type"]
        swapped = data[:at] + struct.pack("<I", 9) + nested(depth) + data[at + 5 :]
        if fine:
            swapped = tiny_prefix(swapped)
            path.write_bytes(swapped)
            value = read_header(str(path)).metadata["foreign.deep"]
            for _ in range(depth):
                assert isinstance(value, list)
                value = value[0]
            assert isinstance(value, np.ndarray) and value.tolist() == [1, 2, 3]
        else:
            path.write_bytes(swapped)
            assert "nested" in str(error_of(lambda: read_header(str(path))))


def tiny_prefix(data: bytes) -> bytes:
    """Append what the moved data section needs so that the last tensor still ends in the file."""
    return bytes(data) + bytes(64)


def test_arrays_of_many_arrays_are_refused(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    data, marks = tiny.set("foreign.deep", "[u8]", [0] * 600_000).to_bytes()
    struct.pack_into("<IQ", data, marks["key:foreign.deep:element"], 9, 50_000)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert "50000 arrays" in str(error_of(lambda: read_header(str(path))))


def test_a_file_of_many_empty_strings_is_refused_quickly(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    count = 5_000_000
    data, marks = tiny.set("foreign.many", "[u8]", []).to_bytes()
    struct.pack_into("<IQ", data, marks["key:foreign.many:element"], 8, count)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    os.truncate(path, len(data) + 8 * count)
    start = time.perf_counter()
    assert "strings" in str(error_of(lambda: read_header(str(path))))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("make", ["folder", "missing", "pipe", "nul", "empty"])
def test_what_is_no_file(tmp_path: Path, make: str) -> None:
    path = tmp_path / "m.gguf"
    if make == "folder":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "empty":
        path.touch()
    name = f"{path}\0x" if make == "nul" else str(path)
    wanted = {"folder": "regular", "pipe": "regular", "empty": "too short"}
    with pytest.raises(ModelFileError, match=wanted.get(make, "cannot open")):
        read_header(name)


def test_only_the_header_is_touched(tiny: Any, tmp_path: Path) -> None:
    tiny.store("x.huge", "F32", (1 << 15, 1 << 20), b"")
    data, _ = tiny.to_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    os.truncate(path, len(data) + (1 << 37))
    tracemalloc.start()
    header = read_header(str(path))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert header.tensors[-1].num_bytes == 1 << 37
