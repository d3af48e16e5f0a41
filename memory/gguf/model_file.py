"""Open a model or draft: headers, config, and access to every tensor's bytes and values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

import torch

from engine.errors import InternalError
from engine.model_config import DraftConfig, ModelConfig
from memory.engram import EngramTable
from memory.gguf import blocks
from memory.gguf.classes import ClassTotal, class_totals
from memory.gguf.layouts import DRAFT_ARCH, check_architecture, map_model, require_table
from memory.gguf.mapping import map_bytes
from memory.gguf.metadata import read_draft_config, read_model_config
from memory.gguf.requirements import (
    check_table,
    draft_requirements,
    fit_tensors,
    model_requirements,
)
from memory.gguf.split import TABLE_NAME, FileSet, read_file_set
from memory.gguf.table import TABLE, TablePart
from memory.gguf.tensors import TensorInfo

WEIGHT_TYPES = frozenset(blocks.SUPPORTED) - {"I8"}
"""Storage types of weights; I8 has no scale and only holds bytes of FP8 Engram tables."""
PIECE_BYTES = 1 << 24


class TensorFile:
    """Access to the tensors of one set of GGUF files; base of `ModelFile` and `DraftFile`.

    Nothing is read before it is asked for, nothing is copied before it is decoded. Each file is
    mapped once, when its first tensor is needed; an Engram table is left out of the map.

    Attributes:
        path: first file of the set.
        metadata: keys of the first file under layout-U names; numeric arrays are numpy arrays.
        tensors: tensors by layout-U name, with the shapes the config demands.
    """

    def __init__(
        self, files: FileSet, metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo]
    ) -> None:
        self.files = files
        self.path = files.path
        self.metadata: Mapping[str, object] = MappingProxyType(dict(metadata))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))
        self._maps: dict[str, tuple[int, torch.Tensor]] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the maps; tensors handed out before stay valid, and keep their file's map alive."""
        self._maps.clear()
        self._closed = True

    @property
    def summary(self) -> list[ClassTotal]:
        """Count, weights and bytes of the stored tensors per class and storage type."""
        return class_totals(self.files.tensors.values())

    def raw(self, name: str) -> torch.Tensor:
        """Return a tensor's stored bytes.

        Args:
            name: a key of `tensors`.

        Returns:
            uint8 [..., row_bytes] on the CPU, where ... are the leading extents of the shape. It is
            a read-only map of the file: never write into it. Of a product of two stored tensors
            (`TensorInfo.factors`) it holds the F32 values and is an ordinary tensor.

        Raises:
            InternalError: no such tensor, or the file is closed.
            ModelFileError: the file cannot be mapped any more.
        """
        info = self._find(name)
        if info.factors:
            return self.decode(name).view(torch.uint8)
        return self._stored(info)

    def decode(
        self,
        name: str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """Return a tensor's values.

        Rows are moved to the device and decoded there in pieces of at most 16 MiB of stored bytes
        (or one row), so the peak is the result and a small multiple of a piece.

        Args:
            name: a key of `tensors`.
            dtype: floating type of the result.
            device: where the result lies.

        Returns:
            `dtype` [logical shape], contiguous, writable.

        Raises:
            InternalError: no such tensor, or the file is closed.
            ModelFileError: the file cannot be mapped any more.
        """
        info = self._find(name)
        if info.factors:
            first, second = (self._decode(f, torch.float32, device) for f in info.factors)
            return first.mul_(second).view(info.shape).to(dtype)
        return self._decode(info, dtype, device)

    def _find(self, name: str) -> TensorInfo:
        if self._closed:
            raise InternalError(f"{self.path}: tensor {name} was asked for after close()")
        if name not in self.tensors:
            raise InternalError(f"{self.path}: no tensor {name} among {len(self.tensors)}")
        return self.tensors[name]

    def _stored(self, info: TensorInfo) -> torch.Tensor:
        stop = info.offset + info.num_bytes
        if TABLE_NAME.fullmatch(info.name):
            data = map_bytes(info.path, info.offset, stop)
        else:
            start, window = self._window(info.path)
            data = window[info.offset - start : stop - start]
        return data.view(*info.shape[:-1], info.row_bytes)

    def _window(self, path: str) -> tuple[int, torch.Tensor]:
        """Return the map of a file (all its tensors but Engram tables) and its first offset."""
        if path not in self._maps:
            mapped = [
                t
                for t in self.files.tensors.values()
                if t.path == path and not TABLE_NAME.fullmatch(t.name)
            ]
            start = min(t.offset for t in mapped)
            stop = max(t.offset + t.num_bytes for t in mapped)
            self._maps[path] = (start, map_bytes(path, start, stop))
        return self._maps[path]

    def _decode(
        self, info: TensorInfo, dtype: torch.dtype, device: torch.device | str
    ) -> torch.Tensor:
        rows = self._stored(info).view(-1, info.row_bytes)
        out = torch.empty((len(rows), info.shape[-1]), dtype=dtype, device=device)
        step = max(1, PIECE_BYTES // info.row_bytes)
        for at in range(0, len(rows), step):
            piece = rows[at : at + step].to(device)
            out[at : at + step] = blocks.dequantize(piece, info.quant_type, out_dtype=dtype)
        return out.view(info.shape)


class ModelFile(TensorFile):
    """An opened backbone.

    Attributes:
        config: facts of the model.
        layout: id of the layout the file has, a key of `memory.gguf.layouts.LAYOUTS`.
        table: stored parts of the Engram table in row order, for `memory.engram.EngramTable`.
    """

    def __init__(self, path: str | os.PathLike[str], engram_path: str = "") -> None:
        """Open and check the model; see `open_model`."""
        files = read_file_set(path, engram_path)
        model = map_model(files)
        require_table(model)
        self.config: ModelConfig = read_model_config(model)
        self.layout = model.layout
        self.table: tuple[TablePart, ...] = model.table if self.config.engram else ()
        tensors = fit_tensors(
            model.path, self.config, model_requirements(self.config), model.tensors, WEIGHT_TYPES
        )
        check_table(model.path, self.config, self.table, WEIGHT_TYPES)
        if self.table and self.table[0].rows.name == TABLE:
            tensors[TABLE] = self.table[0].rows
        self._engram: EngramTable | None = None
        super().__init__(files, model.metadata, tensors)

    @property
    def engram(self) -> EngramTable | None:
        """The Engram table for reading rows, or None if the model has none; closed with the file.

        Raises:
            InternalError: the file is closed.
            ModelFileError: the table's file cannot be opened any more.
        """
        if self._closed:
            raise InternalError(f"{self.path}: the Engram table was asked for after close()")
        if self._engram is None and self.table:
            self._engram = EngramTable(self.table)
        return self._engram

    def close(self) -> None:
        """Drop the maps and close the Engram table; tensors handed out before stay valid."""
        super().close()
        if self._engram is not None:
            self._engram.close()


class DraftFile(TensorFile):
    """An opened DSpark draft.

    Attributes:
        config: facts of the draft.
    """

    def __init__(self, path: str | os.PathLike[str], backbone: ModelConfig | None = None) -> None:
        """Open and check the draft; see `open_draft`."""
        files = read_file_set(path)
        check_architecture(files, DRAFT_ARCH)
        metadata, stored = files.headers[0].metadata, files.tensors
        self.config: DraftConfig = read_draft_config(files.path, metadata, stored, backbone)
        tensors = fit_tensors(
            files.path, self.config, draft_requirements(self.config), stored, WEIGHT_TYPES
        )
        super().__init__(files, metadata, tensors)


def open_model(path: str | os.PathLike[str], engram_path: str = "") -> ModelFile:
    """Open a DeepSeek-V4.1 model for reading.

    Only headers are read; opening a model of any size takes a moment.

    Args:
        path: the file, or any shard of a set.
        engram_path: the Engram table's file; empty looks in the set, beside it and one folder up.

    Raises:
        ModelFileError: a file is missing, damaged, of another architecture, or lacks keys or
            tensors; one line that names the file and the field.
    """
    return ModelFile(path, engram_path)


def open_draft(path: str | os.PathLike[str], backbone: ModelConfig | None = None) -> DraftFile:
    """Open a DSpark draft (architecture `dflash`) for reading.

    Args:
        path: the draft file.
        backbone: config of the model it drafts for; checks that the two fit.

    Raises:
        ModelFileError: as for `open_model`.
    """
    return DraftFile(path, backbone)
