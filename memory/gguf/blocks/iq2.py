"""IQ2_XXS, IQ2_XS and IQ2_S: 8 magnitudes per point of a lattice, with separate signs.

Shapes: N super-blocks of 256 values. Magnitudes are 8, 25 or 43; the scale of a group is
d (s + 1/2) / 4 with a 4-bit s.
"""

from __future__ import annotations

from torch import Tensor

from memory.gguf.blocks.codebooks import grid, look_up, seven_bit_signs
from memory.gguf.blocks.fields import bit_runs, f16, signs, u16, u32, word_fields


def _scaled(blocks: Tensor, s: Tensor, points: Tensor, sign: Tensor) -> Tensor:
    """Return scale * points * sign: s [N, G] of groups; points and sign [N, 32, 8]."""
    scale = f16(blocks, 0) * (0.5 + s.float()) * 0.25
    groups = (points * sign).reshape(len(s), s.shape[1], -1)
    return (scale[..., None] * groups).flatten(1)


def iq2_xxs(blocks: Tensor) -> Tensor:
    """Return scaled signed points, groups of 32: uint8 [N, 66] -> float32 [N, 256].

    Bytes: d, then 8 groups of 4 index bytes and a word of 4 x 7 sign bits and the 4-bit scale.
    """
    groups = blocks[:, 2:].reshape(-1, 8, 8)
    words = u32(blocks, 2, 66)[:, 1::2]
    points = look_up(grid("IQ2_XXS", blocks.device), groups[..., :4].flatten(1))
    sign = look_up(seven_bit_signs(blocks.device), word_fields(words, 7, 4).flatten(1))
    return _scaled(blocks, words >> 28 & 15, points, sign)


def iq2_xs(blocks: Tensor) -> Tensor:
    """Return scaled signed points, groups of 16: uint8 [N, 74] -> float32 [N, 256].

    Bytes: d, 32 words of a 9-bit index and 7 sign bits, 8 of 4-bit scales.
    """
    words = u16(blocks, 2, 66)
    points = look_up(grid("IQ2_XS", blocks.device), words & 511)
    sign = look_up(seven_bit_signs(blocks.device), words >> 9)
    return _scaled(blocks, bit_runs(blocks[:, 66:], 4), points, sign)


def iq2_s(blocks: Tensor) -> Tensor:
    """Return scaled signed points, groups of 16: uint8 [N, 82] -> float32 [N, 256].

    Bytes: d, 32 of low index bits, 32 of signs (one bit a value), 8 of 2 high index bits, 8 of
    4-bit scales.
    """
    high = bit_runs(blocks[:, 66:74], 2)
    points = look_up(grid("IQ2_S", blocks.device), blocks[:, 2:34].int() | high.int() << 8)
    sign = signs(bit_runs(blocks[:, 34:66], 1)).reshape(-1, 32, 8)
    return _scaled(blocks, bit_runs(blocks[:, 74:], 4), points, sign)
