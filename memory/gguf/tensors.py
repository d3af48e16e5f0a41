"""Records of a GGUF file's contents, and the check that its tensors lie soundly in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import ModelFileError
from memory.gguf import format as fmt
from memory.gguf.format import quote


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


def check_ranges(header: Header) -> None:
    """Check that the tensors' bytes fill the data section: aligned, in the file, one after another.

    No gap beyond the alignment is allowed, as in llama.cpp: a gap means that a type or an extent is
    wrong. The tensors may lie in any order.

    Raises:
        ModelFileError: names the tensor and the bytes.
    """
    ordered = sorted(header.tensors, key=lambda info: info.offset)
    for info in ordered:
        relative, stop = info.offset - header.data_offset, info.offset + info.num_bytes
        if relative % header.alignment:
            raise ModelFileError(
                header.path,
                quote(info.name),
                f"offset {relative} is not a multiple of the alignment {header.alignment}",
            )
        if stop > header.file_size:
            raise ModelFileError(
                header.path,
                quote(info.name),
                f"its data ends at byte {stop}, but the file has {header.file_size}; the file is "
                "truncated or damaged, download it again",
            )
    end, before = header.data_offset, "the header"
    for info in ordered:
        expected = end + (header.data_offset - end) % header.alignment
        if info.offset != expected:
            problem = "overlaps" if info.offset < expected else "leaves a gap after"
            raise ModelFileError(
                header.path,
                quote(info.name),
                f"its data at byte {info.offset} {problem} {before}, which ends at {end}; a type, "
                "shape or offset is damaged",
            )
        end, before = info.offset + info.num_bytes, quote(info.name)
    spare = header.file_size - end
    if ordered and spare > max(header.alignment, fmt.MAX_SPARE_BYTES):
        raise ModelFileError(
            header.path,
            before,
            f"{spare} bytes follow this last tensor; its type or shape is damaged",
        )
