"""MXFP4 and NVFP4: E2M1 codes under shared E8M0 or E4M3 scales.

Shapes: N blocks. The code levels are doubled integers (0, 1, 2, 3, 4, 6, 8, 12 and negatives), so
the decoded scale is halved. Formats: OCP Microscaling Formats MX v1.0; NVFP4 has one unsigned E4M3
scale per 16 values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from memory.gguf.blocks.codebooks import levels, look_up
from memory.gguf.blocks.fields import bit_planes


def half_e8m0(codes: Tensor) -> Tensor:
    """Return 2^(e - 128) of biased exponents e: uint8 [...] -> float32 [...].

    2^-128 and 2^-127 are subnormal in float32, hence the two cases.
    """
    e = codes.int()
    subnormal = torch.where(e == 0, 0x00200000, 0x00400000)
    return torch.where(e < 2, subnormal, (e - 1) << 23).to(torch.int32).view(torch.float32)


def half_ue4m3(codes: Tensor) -> Tensor:
    """Return half the value of unsigned E4M3 codes, 0 for NaN: uint8 [...] -> float32 [...].

    The top bit is ignored; only 0x7F counts as NaN.
    """
    exponent = codes.int() >> 3 & 15
    mantissa = codes.int() & 7
    # float32 has bias 127, E4M3 bias 7, and the half takes one more.
    normal = ((exponent + 119) << 23 | mantissa << 20).view(torch.float32)
    value = torch.where(exponent == 0, mantissa.float() * 2.0**-10, normal)
    return torch.where(codes == 0x7F, 0.0, value)


def mxfp4(blocks: Tensor) -> Tensor:
    """Return scale level: uint8 [N, 17] -> float32 [N, 32]. Bytes: E8M0 scale, 16 of codes."""
    codes = bit_planes(blocks[:, 1:], 4).flatten(1)
    return half_e8m0(blocks[:, :1]) * look_up(levels("MXFP4", blocks.device), codes)


def nvfp4(blocks: Tensor) -> Tensor:
    """Return scale level, groups of 16: uint8 [N, 36] -> float32 [N, 64].

    Bytes: 4 E4M3 scales, 32 of codes (8 per group; low nibbles are the group's first half).
    """
    codes = bit_planes(blocks[:, 4:].reshape(-1, 4, 8), 4).flatten(2)
    values = look_up(levels("NVFP4", blocks.device), codes)
    return (half_ue4m3(blocks[:, :4])[..., None] * values).flatten(1)
