"""The Sinkhorn op: schema, fake, and the choice of implementation."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from ops.hyper_connection.reference import sinkhorn as sinkhorn_reference
from ops.library import define_op


def _cuda(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Run the Triton kernel where it can: Triton present, number of streams a power of two."""
    streams = logits.shape[-1]
    if importlib.util.find_spec("triton") is None or streams & (streams - 1):
        return sinkhorn_reference(logits, iterations, eps)
    from ops.hyper_connection.triton.sinkhorn import sinkhorn_cuda

    return sinkhorn_cuda(logits, iterations, eps)


def _fake(logits: Tensor, iterations: int, eps: float) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


sinkhorn = define_op(
    "sinkhorn(Tensor logits, int iterations, float eps) -> Tensor",
    reference=sinkhorn_reference,
    fake=_fake,
    cuda=_cuda,
)
