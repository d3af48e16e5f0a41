"""IQ4_NL and IQ4_XS: 4-bit codes of 16 uneven levels. Shapes: N blocks."""

from __future__ import annotations

from torch import Tensor

from memory.gguf.blocks.codebooks import levels, look_up
from memory.gguf.blocks.fields import bit_planes, bit_runs, f16, u16, word_fields


def iq4_nl(blocks: Tensor) -> Tensor:
    """Return d level: uint8 [N, 18] -> float32 [N, 32]. Bytes: d, 16 of codes."""
    codes = bit_planes(blocks[:, 2:], 4).flatten(1)
    return f16(blocks, 0) * look_up(levels("IQ4_NL", blocks.device), codes)


def iq4_xs(blocks: Tensor) -> Tensor:
    """Return (d (s - 32)) level, groups of 32: uint8 [N, 136] -> float32 [N, 256].

    Bytes: d, a word of 8 x 2 high scale bits, 4 of 8 x 4 low scale bits, 128 of codes.
    """
    high = word_fields(u16(blocks, 2, 4), 2, 8).flatten(1)
    low = bit_runs(blocks[:, 4:8], 4).int()
    scale = f16(blocks, 0) * ((low | high << 4) - 32).float()
    codes = bit_planes(blocks[:, 8:].reshape(-1, 8, 16), 4).flatten(2)
    values = look_up(levels("IQ4_NL", blocks.device), codes)
    return (scale[..., None] * values).flatten(1)
