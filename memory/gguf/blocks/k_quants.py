"""K-quants: super-blocks of 256 values in groups of 16 or 32 with packed integer scales.

Shapes: N super-blocks. The scale of a group is the float16 scale d of the super-block times the
group's integer scale; Q2_K, Q4_K and Q5_K subtract a minimum made the same way. The product d *
scale comes first, so that float32 results equal those of ggml bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from memory.gguf.blocks.fields import bit_planes, f16, i8


def q2_k(blocks: Tensor) -> Tensor:
    """Return (d s) q - (dmin m), groups of 16: uint8 [N, 84] -> float32 [N, 256].

    Bytes: 16 of scale (low nibble) and minimum (high nibble), 64 of 2-bit q, d, dmin.
    """
    groups = blocks[:, :16]
    scale = f16(blocks, 80) * (groups & 15).float()
    minimum = f16(blocks, 82) * (groups >> 4).float()
    q = bit_planes(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    return (scale[..., None] * q.float() - minimum[..., None]).flatten(1)


def q3_k(blocks: Tensor) -> Tensor:
    """Return (d (s - 32)) (q - 4), groups of 16: uint8 [N, 110] -> float32 [N, 256].

    Bytes: 32 of third bits, 64 of 2-bit q, 12 of 6-bit scales, d. Bytes 0 ... 7 of the scales hold
    the low 4 bits of scales i and i + 8, bytes 8 ... 11 the high 2 bits of i, i + 4, i + 8, i + 12.
    """
    packed = blocks[:, 96:108]
    low = bit_planes(packed[:, :8], 4).flatten(1)
    high = bit_planes(packed[:, 8:], 2).flatten(1)
    scale = f16(blocks, 108) * ((low | high << 4).float() - 32)
    q_low = bit_planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    q_high = bit_planes(blocks[:, :32], 1).reshape(-1, 16, 16)
    q = (q_low | q_high << 2).float() - 4
    return (scale[..., None] * q).flatten(1)


def _six_bit_pairs(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack the 8 scales and 8 minima of Q4_K and Q5_K: uint8 [N, 12] -> two uint8 [N, 8].

    Numbers 0 ... 3 are the low 6 bits of bytes 0 ... 3 (scales) and 4 ... 7 (minima). Numbers
    4 ... 7 have their low 4 bits in bytes 8 ... 11 (scale low nibble, minimum high nibble) and
    their high 2 bits in the top of bytes 0 ... 3 and 4 ... 7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | (first >> 2 & 48)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | (second >> 2 & 48)), dim=1)
    return scales, minima


def _affine_groups(blocks: Tensor, q: Tensor) -> Tensor:
    """Return (d s) q - (dmin m) with d, dmin and 6-bit pairs in front: q [N, 8, 32]."""
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    scale = f16(blocks, 0) * scales.float()
    minimum = f16(blocks, 2) * minima.float()
    return (scale[..., None] * q.float() - minimum[..., None]).flatten(1)


def q4_k(blocks: Tensor) -> Tensor:
    """Return (d s) q - (dmin m), groups of 32: uint8 [N, 144] -> float32 [N, 256].

    Bytes: d, dmin, 12 of scales and minima, 128 of 4-bit q.
    """
    q = bit_planes(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _affine_groups(blocks, q)


def q5_k(blocks: Tensor) -> Tensor:
    """Return (d s) q - (dmin m), groups of 32: uint8 [N, 176] -> float32 [N, 256].

    Bytes: d, dmin, 12 of scales and minima, 32 of fifth bits, 128 of the low 4 bits.
    """
    low = bit_planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _affine_groups(blocks, low | bit_planes(blocks[:, 16:48], 1) << 4)


def q6_k(blocks: Tensor) -> Tensor:
    """Return (d s) (q - 32), groups of 16: uint8 [N, 210] -> float32 [N, 256].

    Bytes: 128 of the low 4 bits, 64 of the high 2 bits, 16 signed scales, d.
    """
    scale = f16(blocks, 208) * i8(blocks, 192, 208)
    low = bit_planes(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 16, 16)
    high = bit_planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    return (scale[..., None] * ((low | high << 4).float() - 32)).flatten(1)
