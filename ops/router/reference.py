"""Expert routing: square root of softplus, biased choice, unbiased weights.

Legend: T rows, E experts, K chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ops.top_k import exact_top_k


def route(
    logits: Tensor, bias: Tensor, num_used: int, scale: float, normalise: bool
) -> tuple[Tensor, Tensor]:
    """Choose experts and their weights.

    Args:
        logits: [T, E] float32.
        bias: [E] float32, added only for the choice.
        num_used: K.
        scale: factor on the weights, after normalisation.
        normalise: divide the chosen weights by their sum (plus 1e-20).

    Returns:
        expert ids [T, K] int64, best first, ties to the lower id; weights [T, K] float32.
    """
    softplus = logits.clamp(min=0) + torch.log1p(torch.exp(-logits.abs()))  # stable for large |z|
    scores = torch.sqrt(softplus)
    ids = exact_top_k(scores + bias, num_used)
    weights = scores.gather(-1, ids)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * scale
