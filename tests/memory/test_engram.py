from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from engine.errors import InternalError, ModelFileError
from memory.engram import EngramTable, decode_fp8_rows
from memory.gguf.table import TablePart
from memory.gguf.tensors import TensorInfo


def info(
    path: Path, kind: str, rows: int, columns: int, offset: int, name: str = "t"
) -> TensorInfo:
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    return TensorInfo(
        name="t",
        quant_type=kind,
        shape=(rows, columns),
        path=str(path),
        file_index=0,
        offset=offset,
        num_bytes=rows * columns // block * size,
    )


def plain(rows: TensorInfo) -> TablePart:
    return TablePart(rows=rows, scales=None, inline_scales=False, layer=None)


def stored_rows(kind: str, rows: int, columns: int, seed: int) -> tuple[bytes, np.ndarray]:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    quant = GGMLQuantizationType[kind]
    stored = quants.quantize(values, quant)
    return stored.tobytes(), quants.dequantize(stored, quant).astype(np.float32)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "MXFP4"])
def test_rows_of_one_part(tmp_path: Path, kind: str) -> None:
    data, values = stored_rows(kind, 300, 64, 1)
    path = tmp_path / "t"
    path.write_bytes(bytes(77) + data)
    numbers = np.random.default_rng(2).integers(0, 300, (50, 6))
    with EngramTable([plain(info(path, kind, 300, 64, 77))]) as table:
        assert (table.num_rows, table.row_dim) == (300, 64)
        gathered = table.gather(numbers)
        assert gathered.dtype == torch.float32 and gathered.shape == (50, 384)
        np.testing.assert_array_equal(gathered.numpy(), values[numbers].reshape(50, -1))
        assert torch.equal(table.gather(torch.from_numpy(numbers)), gathered)
        assert torch.equal(table.gather(numbers.astype(np.int32)), gathered)
        assert table.gather(np.zeros((0, 6), np.int64)).shape == (0, 384)
        assert table.gather(np.zeros((3, 0), np.int64)).shape == (3, 0)


def test_parts_of_several_types_form_one_row_space(tmp_path: Path) -> None:
    parts, values = [], []
    for number, (kind, rows) in enumerate((("Q8_0", 100), ("F16", 1), ("F32", 57))):
        data, decoded = stored_rows(kind, rows, 32, number)
        path = tmp_path / f"t{number}"
        path.write_bytes(data)
        parts.append(plain(info(path, kind, rows, 32, 0)))
        values.append(decoded)
    whole = np.concatenate(values)
    table = EngramTable(parts)
    numbers = np.arange(158).reshape(79, 2)
    np.testing.assert_array_equal(table.gather(numbers).numpy(), whole[numbers].reshape(79, -1))
    numbers = np.array([[100, 99], [101, 157], [0, 100]])
    np.testing.assert_array_equal(table.gather(numbers).numpy(), whole[numbers].reshape(3, -1))


def test_small_pieces_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, values = stored_rows("Q8_0", 200, 32, 3)
    path = tmp_path / "t"
    path.write_bytes(data)
    monkeypatch.setattr("memory.engram.DECODE_ROWS", 7)
    monkeypatch.setattr("memory.engram.READ_BYTES", 100)
    numbers = np.random.default_rng(4).permutation(200).reshape(20, 10)
    gathered = EngramTable([plain(info(path, "Q8_0", 200, 32, 0))]).gather(numbers)
    np.testing.assert_array_equal(gathered.numpy(), values[numbers].reshape(20, -1))


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    reads: list[tuple[int, int]] = []
    real: Callable[..., int] = os.preadv

    def counted(fd: int, buffers: list[memoryview], offset: int) -> int:
        reads.append((offset, sum(len(b) for b in buffers)))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    return reads


def test_each_row_is_read_once_and_neighbours_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = stored_rows("Q8_0", 100, 32, 5)
    path = tmp_path / "t"
    path.write_bytes(data)
    table = EngramTable([plain(info(path, "Q8_0", 100, 32, 0))])
    reads = count_reads(monkeypatch)
    table.gather(np.array([[7, 50, 7], [8, 7, 99], [50, 50, 50]]))
    assert reads == [(7 * 34, 2 * 34), (50 * 34, 34), (99 * 34, 34)]


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, values = stored_rows("F32", 10, 32, 6)
    path = tmp_path / "t"
    path.write_bytes(data)
    real: Callable[..., int] = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, bufs, at: real(fd, [bufs[0][:50]], at))
    gathered = EngramTable([plain(info(path, "F32", 10, 32, 0))]).gather(np.array([[2, 3, 9]]))
    np.testing.assert_array_equal(gathered.numpy(), values[[2, 3, 9]].reshape(1, -1))


def test_rows_beyond_all_32_bit_limits(tmp_path: Path) -> None:
    """Row numbers above 2^31 and offsets above 2^38, in a sparse file of more than 300 GB."""
    count = 2**31 + 1000
    start = 2**35 + 32
    rows = info(tmp_path / "t", "IQ4_NL", count, 256, start)
    assert rows.num_bytes == count * 144
    size = start + rows.num_bytes
    assert size > 300 * 10**9
    (tmp_path / "t").touch()
    os.truncate(tmp_path / "t", size)
    numbers = [0, 5, 2**29 + 1, 2**31 - 1, 2**31, count - 2, count - 1]
    rng = np.random.default_rng(7)
    stored = rng.integers(0, 256, (len(numbers), 8, 18), dtype=np.uint8)
    stored[:, :, :2] = (
        rng.uniform(0.01, 1, (len(numbers), 8)).astype("<f2")[..., None].view(np.uint8)
    )
    with open(tmp_path / "t", "r+b") as file:
        for number, row in zip(numbers, stored, strict=True):
            file.seek(start + number * 144)
            file.write(row.tobytes())
    wanted = quants.dequantize(stored.reshape(-1, 144), GGMLQuantizationType.IQ4_NL)
    table = EngramTable([plain(rows)])
    order = [6, 0, 3, 4, 1, 5, 2]
    gathered = table.gather(np.array(numbers)[order][None])
    np.testing.assert_array_equal(gathered.numpy(), wanted[order].reshape(1, -1))
    two = EngramTable([plain(rows), plain(rows)])
    assert two.num_rows == 2 * count
    gathered = two.gather(np.array([[count + n for n in numbers]]))
    np.testing.assert_array_equal(gathered.numpy(), wanted.reshape(1, -1))
    assert (tmp_path / "t").stat().st_blocks * 512 < 1 << 20


def test_fp8_rows_against_every_code_and_scale() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
    values = codes.view(torch.float8_e4m3fn).float()
    for scale in (0, 1, 100, 127, 128, 200):
        decoded = decode_fp8_rows(codes, torch.full((8, 1), scale, dtype=torch.uint8))
        wanted = values.double() * 2.0 ** (scale - 127)
        torch.testing.assert_close(decoded.double(), wanted, rtol=0, atol=0, equal_nan=True)
    assert decode_fp8_rows(codes, torch.full((8, 1), 255, dtype=torch.uint8)).isnan().all()


def test_fp8_rows_with_inline_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    stored = rng.integers(0, 120, (40, 66), dtype=np.uint8)
    path = tmp_path / "t"
    path.write_bytes(stored.tobytes())
    part = TablePart(rows=info(path, "I8", 40, 66, 0), scales=None, inline_scales=True, layer=1)
    table = EngramTable([part])
    assert table.row_dim == 64
    codes = torch.from_numpy(stored[:, :64].copy()).view(torch.float8_e4m3fn).double().numpy()
    wanted = codes * np.ldexp(1.0, stored[:, 64:].astype(int) - 127).repeat(32, axis=1)
    numbers = rng.integers(0, 40, (9, 3))
    np.testing.assert_array_equal(
        table.gather(numbers).double().numpy(), wanted[numbers].reshape(9, -1)
    )


@pytest.fixture
def table(tmp_path: Path) -> EngramTable:
    data, _ = stored_rows("Q8_0", 100, 32, 9)
    (tmp_path / "t").write_bytes(data)
    return EngramTable([plain(info(tmp_path / "t", "Q8_0", 100, 32, 0))])


@pytest.mark.parametrize("number", [-1, 100, 2**62, -(2**62)])
def test_rows_out_of_range(table: EngramTable, number: int) -> None:
    with pytest.raises(InternalError, match="the table has 100"):
        table.gather(np.array([[0, number]]))


@pytest.mark.parametrize(
    "rows", [np.zeros(3, np.int64), np.zeros((2, 2)), np.zeros((1, 1, 1), int)]
)
def test_what_are_no_row_numbers(table: EngramTable, rows: np.ndarray) -> None:
    with pytest.raises(InternalError, match=r"integers \[tokens, columns\]"):
        table.gather(rows)


def test_use_after_close(table: EngramTable) -> None:
    table.close()
    table.close()
    with pytest.raises(InternalError, match="after close"):
        table.gather(np.array([[1]]))


def test_file_that_is_too_short_or_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(bytes(34 * 10))
    with pytest.raises(ModelFileError, match="shrunk"):
        EngramTable([plain(info(path, "Q8_0", 11, 32, 0))])
    table = EngramTable([plain(info(path, "Q8_0", 10, 32, 0))])
    os.truncate(path, 34 * 5 + 3)
    table.gather(np.array([[4]]))
    with pytest.raises(ModelFileError, match=r"t: t: the file ends"):
        table.gather(np.array([[5]]))


def test_parts_must_fit_together(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="0 parts"):
        EngramTable([])
    (tmp_path / "t").write_bytes(bytes(34 * 30))
    parts = [plain(info(tmp_path / "t", "Q8_0", 10, w, 0)) for w in (32, 64)]
    with pytest.raises(InternalError, match="different widths"):
        EngramTable(parts)


def test_descriptors_are_closed_when_a_part_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(bytes(34 * 10))
    parts = [plain(info(tmp_path / n, "Q8_0", 10, 32, 0)) for n in ("t", "none")]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(ModelFileError, match="cannot open"):
            EngramTable(parts)
    assert len(os.listdir("/proc/self/fd")) <= before
