"""Rows of the Engram table, read from the file by number.

The table of the released model is 110 GB; it is never mapped or loaded. A gather reads the rows it
needs by their offsets, each distinct row once, and decodes only those.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Self

import numpy as np
import torch

from engine.errors import InternalError, ModelFileError
from memory.gguf import blocks
from memory.gguf.header import open_regular
from memory.gguf.table import TablePart
from memory.gguf.tensors import TensorInfo

READ_BYTES = 1 << 20
"""Longest single read: rows that lie side by side are read together up to this."""
DECODE_ROWS = 1 << 14
"""Rows decoded at a time; bounds what decoding needs beyond the result."""
FP8_GROUP = 32
"""Columns per E8M0 scale in tables of FP8 bytes."""
E8M0 = torch.from_numpy(np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32("nan")))
"""Value of each E8M0 byte, float32 [256]."""


class RowReader:
    """Reads rows of one tensor with a leading row axis, by offset, with 64-bit arithmetic."""

    def __init__(self, info: TensorInfo) -> None:
        self.info = info
        self.row_bytes = info.row_bytes
        self._fd, size = open_regular(info.path)
        stop = info.offset + info.num_bytes
        if size < stop:
            self.close()
            raise ModelFileError(
                info.path, info.name, f"the file has shrunk to {size} bytes, needs {stop}"
            )
        os.posix_fadvise(self._fd, info.offset, info.num_bytes, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Read rows.

        Args:
            rows: strictly ascending row numbers within the tensor.

        Returns:
            uint8 [len(rows), row_bytes].

        Raises:
            ModelFileError: the file cannot be read or has become shorter.
        """
        data = bytearray(len(rows) * self.row_bytes)
        view = memoryview(data)
        longest = max(1, READ_BYTES // self.row_bytes)
        start = 0
        while start < len(rows):
            stop = start + 1
            while stop < len(rows) and stop - start < longest and rows[stop] == rows[stop - 1] + 1:
                stop += 1
            target = view[start * self.row_bytes : stop * self.row_bytes]
            self._fill(target, self.info.offset + rows[start] * self.row_bytes)
            start = stop
        return torch.frombuffer(data, dtype=torch.uint8).view(len(rows), self.row_bytes)

    def _fill(self, target: memoryview, offset: int) -> None:
        """Fill `target` from the file at byte `offset`."""
        while len(target):
            try:
                count = os.preadv(self._fd, [target], offset)
            except OSError as problem:
                raise ModelFileError(
                    self.info.path,
                    self.info.name,
                    f"reading {len(target)} bytes at {offset} failed: {problem.strerror}",
                ) from None
            if count == 0:
                raise ModelFileError(
                    self.info.path, self.info.name, f"the file ends before byte {offset}"
                )
            target = target[count:]
            offset += count


def decode_fp8_rows(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Decode FP8 rows: E4M3 code times a power of two per 32 columns.

    Args:
        codes: uint8 [rows, columns], E4M3 (finite, NaN variant).
        scales: uint8 [rows, columns / 32], E8M0: 2 ** (byte - 127), 255 is NaN.

    Returns:
        float32 [rows, columns], exact.
    """
    values = codes.contiguous().view(torch.float8_e4m3fn).float()
    powers = E8M0[scales.long()]
    return (values.view(len(codes), -1, FP8_GROUP) * powers[:, :, None]).view(codes.shape)


class PartReader:
    """Reads and decodes rows of one stored part of the table."""

    def __init__(self, part: TablePart) -> None:
        self.part = part
        self._rows = RowReader(part.rows)
        try:
            self._scales = RowReader(part.scales) if part.scales is not None else None
        except ModelFileError:
            self._rows.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        if self._scales is not None:
            self._scales.close()

    def read(self, rows: Sequence[int]) -> torch.Tensor:
        """Return rows (strictly ascending numbers) decoded: float32 [len(rows), row_dim]."""
        stored = self._rows.read(rows)
        if self._scales is not None:
            return decode_fp8_rows(stored, self._scales.read(rows))
        if self.part.inline_scales:
            return decode_fp8_rows(stored[:, : self.part.row_dim], stored[:, self.part.row_dim :])
        return blocks.dequantize(stored, self.part.rows.quant_type, out_dtype=torch.float32)


class EngramTable:
    """The one row space of the Engram memory over its one or more stored parts.

    Attributes:
        num_rows: rows of all parts.
        row_dim: columns of a decoded row.
    """

    def __init__(self, parts: Sequence[TablePart]) -> None:
        """Open the files of the table.

        Args:
            parts: stored parts in row order, `ModelFile.table`.

        Raises:
            InternalError: no parts, or parts of different widths.
            ModelFileError: a file cannot be opened.
        """
        if len({part.row_dim for part in parts}) != 1:
            raise InternalError(f"Engram table: {len(parts)} parts of different widths")
        self.row_dim = parts[0].row_dim
        self._ends = list(accumulate(part.num_rows for part in parts))
        self.num_rows = self._ends[-1]
        self._readers: list[PartReader] = []
        try:
            for part in parts:
                self._readers.append(PartReader(part))
        except ModelFileError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; a later gather fails."""
        for reader in self._readers:
            reader.close()
        self._readers = []

    def gather(self, rows: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return the rows of a batch of tokens, those of a token side by side.

        Args:
            rows: integers [tokens, columns], numbers in the one row space.

        Returns:
            float32 [tokens, columns * row_dim] on the CPU.

        Raises:
            InternalError: a number is out of range, the shape is not 2-D, or the table is closed.
            ModelFileError: the file cannot be read.
        """
        numbers = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
        if numbers.ndim != 2 or numbers.dtype.kind not in "iu":
            raise InternalError(
                f"Engram rows must be integers [tokens, columns], got {numbers.dtype} "
                f"{list(numbers.shape)}"
            )
        distinct, places = np.unique(numbers.astype(np.int64, copy=False), return_inverse=True)
        if distinct.size and not 0 <= distinct[0] <= distinct[-1] < self.num_rows:
            raise InternalError(
                f"Engram rows {distinct[0]} to {distinct[-1]} asked for, the table has "
                f"{self.num_rows}"
            )
        if not self._readers:
            raise InternalError("Engram rows were asked for after close()")
        values = self._read_distinct(distinct)
        picked = values.index_select(0, torch.from_numpy(places.reshape(-1)))
        return picked.view(numbers.shape[0], numbers.shape[1] * self.row_dim)

    def _read_distinct(self, numbers: np.ndarray) -> torch.Tensor:
        """Return ascending distinct rows, int64 [n], decoded: float32 [n, row_dim]."""
        values = torch.empty(len(numbers), self.row_dim)
        base = at = 0
        for reader, end in zip(self._readers, self._ends, strict=True):
            stop = int(np.searchsorted(numbers, end))
            for first in range(at, stop, DECODE_ROWS):
                last = min(first + DECODE_ROWS, stop)
                values[first:last] = reader.read((numbers[first:last] - base).tolist())
            base, at = end, stop
        return values
