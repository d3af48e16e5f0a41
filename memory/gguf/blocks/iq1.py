"""IQ1_S and IQ1_M: 8 values per 11-bit point of a ternary lattice, shifted by 1/8.

Shapes: N super-blocks of 256 values. A value is scale (point + shift) with points in -1, 0, 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from memory.gguf.blocks.codebooks import grid, look_up
from memory.gguf.blocks.fields import bit_runs, f16, signs, u16, word_fields

SHIFT = 0.125


def iq1_s(blocks: Tensor) -> Tensor:
    """Return (d (2 s + 1)) (point + shift), groups of 32: uint8 [N, 50] -> float32 [N, 256].

    Bytes: d, 32 of low index bits, 8 words of 4 x 3 high index bits, a 3-bit scale, and a bit that
    makes the shift negative.
    """
    words = u16(blocks, 34, 50)
    scale = f16(blocks, 0) * (2 * (words >> 12 & 7) + 1).float()
    shift = SHIFT * signs(words >> 15)
    high = word_fields(words, 3, 4).flatten(1)
    points = look_up(grid("IQ1_S", blocks.device), blocks[:, 2:34].int() | high << 8)
    values = points.reshape(-1, 8, 32) + shift[..., None]
    return (scale[..., None] * values).flatten(1)


def iq1_m(blocks: Tensor) -> Tensor:
    """Return (d (2 s + 1)) (point + shift), groups of 16: uint8 [N, 56] -> float32 [N, 256].

    Bytes: 32 of low index bits, 16 of nibbles (3 high index bits and the sign of the shift, one
    nibble per 8 values), 4 words of 4 x 3-bit scales; the top nibbles of the words are d.
    """
    words = u16(blocks, 48, 56)
    places = torch.arange(0, 16, 4, dtype=torch.int32, device=blocks.device)
    half = (words >> 12 << places).sum(dim=1, keepdim=True, dtype=torch.int32)
    d = half.to(torch.int16).view(torch.float16).float()
    scale = d * (2 * word_fields(words, 3, 4).flatten(1) + 1).float()
    nibbles = bit_runs(blocks[:, 32:48], 4).int()
    shift = SHIFT * signs(nibbles >> 3)
    points = look_up(grid("IQ1_M", blocks.device), blocks[:, :32].int() | (nibbles & 7) << 8)
    values = (points + shift[..., None]).reshape(-1, 16, 16)
    return (scale[..., None] * values).flatten(1)
