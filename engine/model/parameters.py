"""Weights as plain frozen parameters, allocated on the meta device until a file fills them."""

from __future__ import annotations

import torch
from torch import nn


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """Return an unfilled weight of this shape on the meta device (no memory).

    The loader replaces it; `engine.model.load` refuses to finish while one is left.
    """
    return nn.Parameter(torch.empty(*shape, dtype=dtype, device="meta"), requires_grad=False)
