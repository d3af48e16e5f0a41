"""RMSNorm with the statistic in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight * x / sqrt(mean(x^2) + eps) over the last dimension.

    Args:
        x: [..., C] any float type.
        weight: [C] float32.
        eps: 1e-20 in the released model; float32 holds it, float16 would not.

    Returns:
        [..., C] in the type of `x`.
    """
    v = x.float()
    return (weight * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps))).to(x.dtype)
