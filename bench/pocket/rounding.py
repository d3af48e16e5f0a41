"""Rounding of caches and expert weights to FP8 and FP4, straight through for gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def straight(x: Tensor, rounded: Tensor) -> Tensor:
    return x + (rounded - x).detach()


def pow2_ceil(v: Tensor) -> Tensor:
    m, e = torch.frexp(v)  # v = m * 2^e, m in [0.5, 1)
    return torch.ldexp(torch.ones_like(v), torch.where(m == 0.5, e - 1, e))


def e2m1(x: Tensor) -> Tensor:
    """Round to 0, .5, 1, 1.5, 2, 3, 4, 6 (ties to even code)."""
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign(torch.round(a / step) * step, x)


def fp8_cache(x: Tensor) -> Tensor:
    v = x.float().unflatten(-1, (-1, 32))
    s = pow2_ceil(v.abs().amax(-1, keepdim=True).clamp(min=1e-4) * np.float32(1 / 448).item())
    q = (v / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s
    return straight(x, q.flatten(-2).to(x.dtype))


def fp4_latent(x: Tensor) -> Tensor:
    v = x.float().unflatten(-1, (-1, 16))
    s = (
        (v.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) / 6)
        .clamp(max=448)
        .to(torch.float8_e4m3fn)
        .float()
    )
    return straight(x, (e2m1(v / s) * s).flatten(-2).to(x.dtype))


def fp4_index(x: Tensor) -> Tensor:
    v = x.float().unflatten(-1, (-1, 32))
    s = pow2_ceil(
        v.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) * np.float32(1 / 6).item()
    )
    return straight(x, (e2m1(v / s) * s).flatten(-2).to(x.dtype))


def mxfp4_weight(w: Tensor) -> Tensor:
    v = w.float().unflatten(-1, (-1, 32))
    _, e = torch.frexp(v.abs().amax(-1, keepdim=True).clamp(min=2.0**-100))
    s = torch.ldexp(torch.ones_like(v[..., :1]), e - 3)  # 2^(floor(log2 amax) - 2)
    return straight(w, (e2m1(v / s) * s).flatten(-2))
