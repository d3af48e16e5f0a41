"""Dispatch from type name to decoder, over slices of bounded size.

Shapes: R stored bytes of a row, C values of a row; a row is a whole number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.errors import ConfigError
from memory.gguf.blocks import iq1, iq2, iq3, iq4, k_quants, legacy, microscaling, plain
from memory.gguf.format import BLOCKS

_DECODERS: dict[str, Callable[[Tensor], Tensor]] = {
    "F32": plain.f32,
    "F16": plain.f16,
    "BF16": plain.bf16,
    "I8": plain.i8,
    "Q8_0": legacy.q8_0,
    "Q4_0": legacy.q4_0,
    "Q4_1": legacy.q4_1,
    "Q5_0": legacy.q5_0,
    "Q5_1": legacy.q5_1,
    "Q2_K": k_quants.q2_k,
    "Q3_K": k_quants.q3_k,
    "Q4_K": k_quants.q4_k,
    "Q5_K": k_quants.q5_k,
    "Q6_K": k_quants.q6_k,
    "IQ1_S": iq1.iq1_s,
    "IQ1_M": iq1.iq1_m,
    "IQ2_XXS": iq2.iq2_xxs,
    "IQ2_XS": iq2.iq2_xs,
    "IQ2_S": iq2.iq2_s,
    "IQ3_XXS": iq3.iq3_xxs,
    "IQ3_S": iq3.iq3_s,
    "IQ4_NL": iq4.iq4_nl,
    "IQ4_XS": iq4.iq4_xs,
    "MXFP4": microscaling.mxfp4,
    "NVFP4": microscaling.nvfp4,
}

SUPPORTED: tuple[str, ...] = tuple(_DECODERS)
"""Names of all types that `dequantize` decodes."""

_SLICE_ELEMENTS = {"cpu": 1 << 15, "cuda": 1 << 23}
"""Values decoded at a time; temporaries take about 24 bytes per value.

On a CPU torch splits operations on more than 32768 values over threads. The pieces are then too
small to gain from it, and lose a hundredfold when other processes are busy; a slice of 32768 stays
in one thread and in its cache. On a GPU large slices keep the launches few.
"""


def block_shape(quant_type: str) -> tuple[int, int]:
    """Return (values, bytes) of one block.

    Raises:
        ConfigError: the type is not in `SUPPORTED`.
    """
    if quant_type not in _DECODERS:
        raise ConfigError(
            f"storage type {quant_type!r} cannot be decoded; supported: {', '.join(SUPPORTED)}"
        )
    return BLOCKS[quant_type]


def dequantize(raw: Tensor, quant_type: str, out_dtype: torch.dtype = torch.float32) -> Tensor:
    """Decode stored rows on the device they are on.

    Float32 results equal ggml's bit for bit; other types are the float32 result, rounded.

    Args:
        raw: uint8 [..., R], any strides.
        quant_type: GGUF name of the storage type, one of `SUPPORTED`.
        out_dtype: a floating-point type.

    Returns:
        out_dtype [..., C], contiguous, on the device of `raw`.

    Raises:
        ConfigError: unknown type, `raw` is not uint8, or R is no multiple of the block's bytes.
    """
    elements, size = block_shape(quant_type)
    if raw.dtype != torch.uint8:
        raise ConfigError(f"{quant_type} rows must be uint8, not {raw.dtype}")
    if raw.ndim == 0 or raw.shape[-1] % size:
        raise ConfigError(
            f"{quant_type} rows must be a multiple of {size} bytes, not {list(raw.shape)}"
        )
    columns = raw.shape[-1] // size * elements
    out = torch.empty((*raw.shape[:-1], columns), dtype=out_dtype, device=raw.device)
    blocks = raw.reshape(-1, size)
    values = out.view(-1, elements)
    step = _SLICE_ELEMENTS.get(raw.device.type, 1 << 15) // elements
    decoder = _DECODERS[quant_type]
    for start in range(0, len(blocks), step):
        values[start : start + step] = decoder(blocks[start : start + step])
    return out
