"""Pooling of token pairs into compressed rows.

Legend: T rows (tokens), C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pool_pair(
    first_value: Tensor, first_score: Tensor, second_value: Tensor, second_score: Tensor
) -> Tensor:
    """Return the softmax-weighted sum of two tokens' values, separately per channel.

    Args:
        first_value, first_score: [T, C] float32, of the pair's first token.
        second_value, second_score: [T, C] float32, of its second token.

    Returns:
        [T, C] float32, before the norm.
    """
    scores = torch.stack((first_score, second_score))
    values = torch.stack((first_value, second_value))
    return (torch.softmax(scores, 0) * values).sum(0)
