"""N-gram memory: hashing of token ids to table rows, and the gate that adds them to the streams.

Legend: T rows (tokens), G longest n-gram, C columns = (G - 1) * heads, H streams, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor


def hash_rows(
    lookback: Tensor, multipliers: Tensor, bucket_sizes: Tensor, row_offsets: Tensor
) -> Tensor:
    """Return the table rows of one layer.

    Args:
        lookback: [T, G] int64 compressed ids: the token itself, the one before, ...; positions
            before the start hold the pad's compressed id.
        multipliers: [G] int64, odd, up to 47 bits; products stay below 2^63 by construction.
        bucket_sizes, row_offsets: [C] int64, n-gram length outermost.

    Returns:
        [T, C] int64 row numbers.
    """
    products = lookback * multipliers
    mixed = products[:, 0]
    grams = []
    for n in range(1, lookback.shape[1]):
        mixed = mixed ^ products[:, n]
        grams.append(mixed)
    heads = bucket_sizes.shape[0] // (lookback.shape[1] - 1)
    hashes = torch.stack(grams, 1).repeat_interleave(heads, 1)
    return hashes % bucket_sizes + row_offsets


def gate_streams(x: Tensor, projected: Tensor, gate_weight: Tensor, norm_eps: float) -> Tensor:
    """Return the gate of each stream.

    Args:
        x: streams [T, H, D].
        projected: [T, H, D] keys, one per stream.
        gate_weight: [H, D] float32, the product of the query and key weights.
        norm_eps: epsilon of both RMS statistics.

    Returns:
        [T, H] float32: sigmoid of the signed square root of the normalised dot product, whose
        magnitude is at least 1e-6 before the root.
    """
    streams, keys = x.float(), projected.float()
    dot = (streams * gate_weight * keys).sum(-1)
    dot = dot * torch.rsqrt(streams.square().mean(-1) + norm_eps)
    dot = dot * torch.rsqrt(keys.square().mean(-1) + norm_eps)
    dot = dot * x.shape[-1] ** -0.5
    return torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))


def add_memory(x: Tensor, projected: Tensor, gate_weight: Tensor, norm_eps: float) -> Tensor:
    """Add the gated memory value to every stream.

    Args:
        x: streams [T, H, D].
        projected: [T, (H + 1) * D]: H keys, then the value.

    Returns:
        [T, H, D] in the type of `x`.
    """
    t, h, d = x.shape
    parts = projected.view(t, h + 1, d)
    gate = gate_streams(x, parts[:, :h], gate_weight, norm_eps)
    return (x.float() + gate.unsqueeze(-1) * parts[:, h:].float()).to(x.dtype)
