"""Index scores of compressed rows.

Legend: T rows (queries), I index heads, C index channels, N compressed rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def index_scores(queries: Tensor, weights: Tensor, keys: Tensor, num_visible: Tensor) -> Tensor:
    """Score compressed rows: sum over heads of weight * relu(query . key).

    Args:
        queries: [T, I, C].
        weights: [T, I] float32, signed, already scaled.
        keys: [N, C] shared by all queries, or [T, N, C] one set for each.
        num_visible: [T] int64; rows at or beyond it score -inf.

    Returns:
        [T, N] float32, accumulated in float32.
    """
    q, k = queries.float(), keys.float()
    if k.dim() == 2:
        t, i, c = q.shape
        products = torch.matmul(q.reshape(t * i, c), k.t()).view(t, i, -1)
    else:
        products = torch.matmul(q, k.transpose(-1, -2))
    scores = torch.matmul(weights.unsqueeze(-2), products.clamp(min=0)).squeeze(-2)
    visible = torch.arange(scores.shape[-1], device=scores.device) < num_visible.unsqueeze(-1)
    return torch.where(visible, scores, float("-inf"))
