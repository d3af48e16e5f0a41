"""Constants of the GGUF container: value types, storage types, limits; and how to quote file text.

Block sizes come from the `gguf` package, so no table is kept here.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Limits. Each is far above what a real file needs and keeps a damaged count from costing time or
# memory; counts are further bounded by the bytes that are left in the file.
MAX_ALIGNMENT = 1 << 20
MAX_HEADER_BYTES = 1 << 28
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_KEY_BYTES = 65535
MAX_NAME_BYTES = 255
MAX_STRING_BYTES = 1 << 24
MAX_STRINGS = 1 << 22
MAX_ARRAY_DEPTH = 2
MAX_NESTED_ARRAYS = 1 << 12
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 62
MAX_SPLIT = 1024
MAX_SPARE_BYTES = 1 << 12

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: dict[int, np.dtype] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Metadata value type id -> its little-endian numpy type; booleans are bytes 0 and 1."""

TYPE_NAMES: dict[int, str] = {int(kind): kind.name for kind in GGMLQuantizationType}
"""Tensor type id -> GGUF type name."""

BLOCKS: dict[str, tuple[int, int]] = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}
"""GGUF type name -> (elements, bytes) of a block."""


def row_bytes(quant_type: str, columns: int) -> int:
    """Return the bytes of a row of `columns` elements; `columns` is a multiple of the block."""
    elements, size = BLOCKS[quant_type]
    return columns // elements * size


def quote(text: str, limit: int = 80) -> str:
    """Return text from a file fit for a one-line message: escaped and cut to `limit` characters."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
