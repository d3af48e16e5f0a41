"""Hyper-connections: mixing of the residual streams around a sub-layer.

Legend: T rows, H streams, D hidden, M = H * (2 + H) mixing numbers. Inner arithmetic is float32.
Each mixer's collapse weights act one sub-layer later ("lagged"): the caller passes them on.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Return a nearly doubly stochastic matrix from [..., H, H] logits.

    A softmax over the last dimension plus `eps` counts as the first row normalisation; rows and
    columns then alternate, `iterations` of each, ending with columns.
    """
    c = torch.softmax(logits, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c.contiguous()


def mix_weights(
    mixes: Tensor, scale: Tensor, base: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Turn raw mixing numbers [T, M] into weights.

    Args:
        mixes: [T, M] float32, ordered: collapse (H), spread (H), stream matrix (H * H, row-major).
        scale: [3] float32, one factor for each of the three parts.
        base: [M] float32.

    Returns:
        collapse weights [T, H], spread weights [T, H], stream matrix [T, H, H]; all float32.
    """
    h = streams
    collapse = torch.sigmoid(mixes[..., :h] * scale[0] + base[:h]) + eps
    spread = 2 * torch.sigmoid(mixes[..., h : 2 * h] * scale[1] + base[h : 2 * h])
    logits = (mixes[..., 2 * h :] * scale[2] + base[2 * h :]).unflatten(-1, (h, h))
    return collapse, spread, torch.ops.ds41.sinkhorn(logits, iterations, eps)


def stream_mix(
    x: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a mixer's weights from the streams before its sub-layer.

    Args:
        x: streams [T, H, D].
        fn: projection [M, H * D] float32; one RMS statistic covers all H * D numbers.

    Returns:
        As `mix_weights`.
    """
    v = x.flatten(-2).float()
    inverse_rms = torch.rsqrt(v.square().mean(-1, keepdim=True) + norm_eps)
    mixes = torch.nn.functional.linear(v, fn) * inverse_rms
    return mix_weights(mixes, scale, base, x.shape[-2], iterations, eps)


def collapse_streams(x: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sum over streams of weights [T, H] * x [T, H, D] as [T, D] in `dtype`."""
    return (x.float() * weights.unsqueeze(-1)).sum(-2).to(dtype)


def spread_output(x: Tensor, output: Tensor, spread: Tensor, matrix: Tensor) -> Tensor:
    """Return new streams: stream j = spread[j] * output + sum_i matrix[i, j] * x[i].

    Args:
        x: [T, H, D]; output: [T, D]; spread: [T, H] float32; matrix: [T, H, H] float32.

    Returns:
        [T, H, D] in the type of `x`.
    """
    mixed = torch.matmul(matrix.transpose(-1, -2), x.float())
    return (spread.unsqueeze(-1) * output.float().unsqueeze(-2) + mixed).to(x.dtype)
