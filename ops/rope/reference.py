"""Rotary position embedding on adjacent pairs of the last channels, computed on the fly.

Legend: T rows, P pairs (rope_dim / 2), C channels. Angles are float32 products of a float32
position and a float32 inverse frequency, as in the reference: at a million tokens a float64 product
would differ by 0.015 rad.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inverse_frequencies(rope_dim: int, theta: float) -> Tensor:
    """Return theta^(-2i / rope_dim), i = 0 ... P-1, float32 [P]."""
    exponents = torch.arange(0, rope_dim, 2, dtype=torch.float32) / rope_dim
    return 1.0 / (theta**exponents)


def yarn_inverse_frequencies(
    rope_dim: int,
    theta: float,
    factor: float,
    original_context: int,
    beta_fast: float,
    beta_slow: float,
) -> Tensor:
    """Return inverse frequencies after YaRN interpolation, float32 [P]; no amplitude factor.

    Pairs that turn more than `beta_fast` times within `original_context` tokens are kept, those
    that turn less than `beta_slow` times are divided by `factor`, a linear ramp lies between.
    """
    frequencies = inverse_frequencies(rope_dim, theta)

    def pair_of(rotations: float) -> float:
        return (
            rope_dim
            * math.log(original_context / (rotations * 2 * math.pi))
            / (2 * math.log(theta))
        )

    low = max(math.floor(pair_of(beta_fast)), 0)
    high = min(math.ceil(pair_of(beta_slow)), rope_dim - 1)
    pairs = torch.arange(rope_dim // 2, dtype=torch.float32)
    ramp = ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp)


def rope_table(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine [T, P] float32 for int positions [T]."""
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last 2P channels of `x`; the others pass through.

    Args:
        x: [..., C] any float type; computed in float32, returned in its own type.
        cos, sin: broadcastable to [..., P] float32.
        inverse: rotate back (conjugate).

    Returns:
        A fresh tensor [..., C].
    """
    rope_dim = 2 * cos.shape[-1]
    plain, rotated = x[..., :-rope_dim], x[..., -rope_dim:].float().unflatten(-1, (-1, 2))
    a, b = rotated[..., 0], rotated[..., 1]
    if inverse:
        sin = -sin
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((plain, turned.to(x.dtype)), -1)
