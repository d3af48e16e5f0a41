"""Types without blocks: one stored number per value. Shapes: N values."""

from __future__ import annotations

import torch
from torch import Tensor


def f32(blocks: Tensor) -> Tensor:
    """Return float32 as it is: uint8 [N, 4] -> float32 [N, 1]."""
    return blocks.clone(memory_format=torch.contiguous_format).view(torch.float32)


def f16(blocks: Tensor) -> Tensor:
    """Widen float16: uint8 [N, 2] -> float32 [N, 1]."""
    return blocks.clone(memory_format=torch.contiguous_format).view(torch.float16).float()


def bf16(blocks: Tensor) -> Tensor:
    """Widen bfloat16: uint8 [N, 2] -> float32 [N, 1]."""
    return blocks.clone(memory_format=torch.contiguous_format).view(torch.bfloat16).float()


def i8(blocks: Tensor) -> Tensor:
    """Return signed bytes as numbers: uint8 [N, 1] -> float32 [N, 1]."""
    return blocks.view(torch.int8).float()
