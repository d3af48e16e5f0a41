"""The stored parts of the Engram table in each layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.errors import ModelFileError
from memory.gguf.format import quote
from memory.gguf.tensors import TensorInfo

TABLE = "per_layer_token_embd.weight"
DS4_ENCODING = "e4m3_e8m0_32_row264"
ENCODING_KEY = "deepseek41.engram.encoding"
BLOCK_NAME = re.compile(r"blk\.(\d{1,6})\.(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """One stored table of the Engram memory: some consecutive rows of the one row space."""

    rows: TensorInfo
    """The rows: a decodable type, or I8 holding E4M3 codes."""
    scales: TensorInfo | None
    """I8 tensor of E8M0 scales per 32 columns (layout T), else None."""
    inline_scales: bool
    """Whether each row ends in its E8M0 scales (layout A)."""
    layer: int | None
    """The only backbone layer that reads this part; None if all do."""

    @property
    def num_rows(self) -> int:
        """Rows of this part."""
        return self.rows.shape[0]

    @property
    def row_dim(self) -> int:
        """Decoded columns of a row; with inline scales 33 bytes hold 32 columns."""
        width = self.rows.shape[-1]
        return width // 33 * 32 if self.inline_scales else width


def layers_with(tensors: Mapping[str, TensorInfo], *names: str) -> list[int]:
    """Return the sorted layers that have a tensor `blk.L.<name>` for any of `names`."""
    found = set()
    for tensor in tensors:
        match = BLOCK_NAME.fullmatch(tensor)
        if match and match[2] in names:
            found.add(int(match[1]))
    return sorted(found)


def table_parts(
    path: str, layout: str, metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo]
) -> tuple[TablePart, ...]:
    """Return the Engram table in row order: the joined table if there is one, else one per layer.

    Raises:
        ModelFileError: an encoding of the rows that is not supported.
    """
    if TABLE in tensors:
        return (TablePart(rows=tensors[TABLE], scales=None, inline_scales=False, layer=None),)
    if layout == "A":
        encoding = metadata.get(ENCODING_KEY)
        if encoding != DS4_ENCODING:
            raise ModelFileError(
                path,
                ENCODING_KEY,
                f"{quote(str(encoding))} is a row format of ds4 (DwarfStar) that is not supported; "
                f"supported is {DS4_ENCODING}",
            )
    suffix = "engram_embed.weight" if layout == "M" else "engram_embd.weight"
    parts = []
    for layer in layers_with(tensors, suffix) if layout != "U" else ():
        scales = tensors.get(f"blk.{layer}.engram_embd_scale.weight") if layout == "T" else None
        rows = tensors[f"blk.{layer}.{suffix}"]
        if layout in "AT":
            check_fp8_part(rows, scales, inline=layout == "A")
        parts.append(TablePart(rows=rows, scales=scales, inline_scales=layout == "A", layer=layer))
    return tuple(parts)


def check_fp8_part(rows: TensorInfo, scales: TensorInfo | None, *, inline: bool) -> None:
    """Check types and shapes of a table of FP8 bytes.

    Raises:
        ModelFileError: names the tensor and what it must be.
    """

    def check(info: TensorInfo, valid: Callable[[tuple[int, ...]], bool], needed: str) -> None:
        if info.quant_type != "I8" or len(info.shape) != 2 or not valid(info.shape):
            raise ModelFileError(
                info.path,
                quote(info.name),
                f"{info.quant_type} {list(info.shape)}; FP8 rows need I8 {needed}",
            )

    if inline:
        check(rows, lambda shape: shape[1] % 33 == 0, "with 33 bytes per 32 columns")
        return
    check(rows, lambda shape: shape[1] % 32 == 0, "with a multiple of 32 columns")
    if scales is None:
        name = rows.name.replace("engram_embd", "engram_embd_scale")
        raise ModelFileError(
            rows.path, quote(name), "the scales of the FP8 Engram rows are missing"
        )
    wanted = (rows.shape[0], rows.shape[1] // 32)
    check(scales, lambda shape: shape == wanted, str(list(wanted)))
