"""Sinkhorn normalisation of the stream mixing matrix, with Triton kernels for training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sinkhorn_torch(logits: Tensor, iters: int, eps: float) -> Tensor:
    c = torch.softmax(logits, -1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def sinkhorn_grad_torch(c: Tensor, g: Tensor, iters: int) -> Tensor:
    """Gradient of a converged Sinkhorn map: logits change C by C * (G - a_i - b_j), rows and columns summing to 0."""
    cg = c * g
    r, k = cg.sum(-1), cg.sum(-2)
    a, b = torch.zeros_like(r), torch.zeros_like(k)
    for _ in range(iters):
        a = r - (c * b.unsqueeze(-2)).sum(-1)
        b = k - (c * a.unsqueeze(-1)).sum(-2)
    return c * (g - a.unsqueeze(-1) - b.unsqueeze(-2))


try:
    import triton
    import triton.language as tl

    @triton.jit
    def _sinkhorn_kernel(src, dst, rows, eps, iters, block: tl.constexpr):  # type: ignore[no-untyped-def]
        n = tl.program_id(0) * block + tl.arange(0, block)
        at = (
            n[:, None, None] * 16
            + tl.arange(0, 4)[None, :, None] * 4
            + tl.arange(0, 4)[None, None, :]
        )
        mask = (n < rows)[:, None, None]
        x = tl.load(src + at, mask=mask, other=0.0)
        x = tl.exp(x - tl.max(x, axis=2)[:, :, None])
        c = x / tl.sum(x, axis=2)[:, :, None] + eps
        c = c / (tl.sum(c, axis=1)[:, None, :] + eps)
        for _ in range(iters - 1):
            c = c / (tl.sum(c, axis=2)[:, :, None] + eps)
            c = c / (tl.sum(c, axis=1)[:, None, :] + eps)
        tl.store(dst + at, c, mask=mask)

    @triton.jit
    def _sinkhorn_grad_kernel(cp, gp, dst, rows, iters, block: tl.constexpr):  # type: ignore[no-untyped-def]
        n = tl.program_id(0) * block + tl.arange(0, block)
        at = (
            n[:, None, None] * 16
            + tl.arange(0, 4)[None, :, None] * 4
            + tl.arange(0, 4)[None, None, :]
        )
        mask = (n < rows)[:, None, None]
        c = tl.load(cp + at, mask=mask, other=0.0)
        g = tl.load(gp + at, mask=mask, other=0.0)
        r = tl.sum(c * g, axis=2)
        k = tl.sum(c * g, axis=1)
        a = r
        b = k - tl.sum(c * a[:, :, None], axis=1)
        for _ in range(iters - 1):
            a = r - tl.sum(c * b[:, None, :], axis=2)
            b = k - tl.sum(c * a[:, :, None], axis=1)
        tl.store(dst + at, c * (g - a[:, :, None] - b[:, None, :]), mask=mask)

    HAVE_TRITON = True
except ImportError:
    HAVE_TRITON = False


@torch.library.custom_op("pocket::sinkhorn", mutates_args=())
def sinkhorn_op(logits: Tensor, iters: int, eps: float) -> Tensor:
    if HAVE_TRITON and logits.is_cuda:
        out = torch.empty_like(logits, memory_format=torch.contiguous_format)
        rows = logits.numel() // 16
        _sinkhorn_kernel[(triton.cdiv(rows, 64),)](
            logits.contiguous(), out, rows, eps, iters, block=64
        )
        return out
    return sinkhorn_torch(logits, iters, eps)


@sinkhorn_op.register_fake
def _(logits: Tensor, iters: int, eps: float) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.custom_op("pocket::sinkhorn_grad", mutates_args=())
def sinkhorn_grad_op(c: Tensor, g: Tensor, iters: int) -> Tensor:
    if HAVE_TRITON and c.is_cuda:
        out = torch.empty_like(c, memory_format=torch.contiguous_format)
        rows = c.numel() // 16
        _sinkhorn_grad_kernel[(triton.cdiv(rows, 64),)](
            c.contiguous(), g.contiguous(), out, rows, iters, block=64
        )
        return out
    return sinkhorn_grad_torch(c, g, iters)


@sinkhorn_grad_op.register_fake
def _(c: Tensor, g: Tensor, iters: int) -> Tensor:
    return torch.empty_like(c, memory_format=torch.contiguous_format)


def _sinkhorn_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.iters = inputs[1]


def _sinkhorn_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (c,) = ctx.saved_tensors
    return sinkhorn_grad_op(c, grad.float(), ctx.iters), None, None


sinkhorn_op.register_autograd(_sinkhorn_backward, setup_context=_sinkhorn_setup)
