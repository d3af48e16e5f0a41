"""The first block types: 32 values with one float16 scale, Q4_1 and Q5_1 also with a minimum.

Shapes: N blocks. Byte positions are those of ggml's block structures; nibbles hold value i (low)
and value i + 16 (high).
"""

from __future__ import annotations

from torch import Tensor

from memory.gguf.blocks.fields import bit_planes, bit_runs, f16, i8


def q4_0(blocks: Tensor) -> Tensor:
    """Return d (q - 8): uint8 [N, 18] -> float32 [N, 32]."""
    q = bit_planes(blocks[:, 2:], 4).flatten(1)
    return f16(blocks, 0) * (q.float() - 8)


def q4_1(blocks: Tensor) -> Tensor:
    """Return d q + m: uint8 [N, 20] -> float32 [N, 32]."""
    q = bit_planes(blocks[:, 4:], 4).flatten(1)
    return f16(blocks, 0) * q.float() + f16(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    """Return d (q - 16), the fifth bits in bytes 2 ... 5: uint8 [N, 22] -> float32 [N, 32]."""
    q = bit_planes(blocks[:, 6:], 4).flatten(1) | bit_runs(blocks[:, 2:6], 1) << 4
    return f16(blocks, 0) * (q.float() - 16)


def q5_1(blocks: Tensor) -> Tensor:
    """Return d q + m, the fifth bits in bytes 4 ... 7: uint8 [N, 24] -> float32 [N, 32]."""
    q = bit_planes(blocks[:, 8:], 4).flatten(1) | bit_runs(blocks[:, 4:8], 1) << 4
    return f16(blocks, 0) * q.float() + f16(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    """Return d q with signed bytes q: uint8 [N, 34] -> float32 [N, 32]."""
    return i8(blocks, 2, 34) * f16(blocks, 0)
