"""IQ3_XXS and IQ3_S: 4 magnitudes per point of a lattice, with separate signs.

Shapes: N super-blocks of 256 values, groups of 32.
"""

from __future__ import annotations

from torch import Tensor

from memory.gguf.blocks.codebooks import grid, look_up, seven_bit_signs
from memory.gguf.blocks.fields import bit_runs, f16, signs, u32, word_fields


def iq3_xxs(blocks: Tensor) -> Tensor:
    """Return (d (s + 1/2) / 2) point sign: uint8 [N, 98] -> float32 [N, 256].

    Bytes: d, 64 of indices, 8 words of 4 x 7 sign bits and the 4-bit scale.
    """
    words = u32(blocks, 66, 98)
    scale = f16(blocks, 0) * (0.5 + (words >> 28 & 15).float()) * 0.5
    points = look_up(grid("IQ3_XXS", blocks.device), blocks[:, 2:66])
    sign = look_up(seven_bit_signs(blocks.device), word_fields(words, 7, 4))
    values = points.reshape(-1, 8, 32) * sign.reshape(-1, 8, 32)
    return (scale[..., None] * values).flatten(1)


def iq3_s(blocks: Tensor) -> Tensor:
    """Return (d (2 s + 1)) point sign: uint8 [N, 110] -> float32 [N, 256].

    Bytes: d, 64 of low index bits, 8 of the high index bit, 32 of signs (one bit a value), 4 of
    4-bit scales.
    """
    scale = f16(blocks, 0) * (1 + 2 * bit_runs(blocks[:, 106:], 4)).float()
    high = bit_runs(blocks[:, 66:74], 1)
    points = look_up(grid("IQ3_S", blocks.device), blocks[:, 2:66].int() | high.int() << 8)
    sign = signs(bit_runs(blocks[:, 74:106], 1))
    values = points.reshape(-1, 8, 32) * sign.reshape(-1, 8, 32)
    return (scale[..., None] * values).flatten(1)
