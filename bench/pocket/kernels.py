"""Parts of a layer as pure functions, compiled for training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rounding import fp4_index, fp4_latent, fp8_cache, mxfp4_weight
from sinkhorn import sinkhorn_op
from torch import Tensor

EPS = 1e-20


def mix(
    x: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iters: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., H, D] -> pre [..., H], post [..., H], C [..., H, H]."""
    h = x.shape[-2]
    v = x.flatten(-2).float()
    m = F.linear(v, fn) * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
    pre = torch.sigmoid(m[..., :h] * scale[0] + base[:h]) + eps
    post = 2 * torch.sigmoid(m[..., h : 2 * h] * scale[1] + base[h : 2 * h])
    logits = (m[..., 2 * h :] * scale[2] + base[2 * h :]).unflatten(-1, (h, h))
    return pre, post, sinkhorn_op(logits.contiguous(), iters, eps)


def expand(x: Tensor, a: Tensor, post: Tensor, c: Tensor) -> Tensor:
    out = post.unsqueeze(-1) * a.float().unsqueeze(-2)
    for i in range(x.shape[-2]):
        out = out + c[..., i, :].unsqueeze(-1) * x[..., i, :].float().unsqueeze(-2)
    return out.to(x.dtype)


def collapse(x: Tensor, pre: Tensor) -> Tensor:
    return (x.float() * pre.unsqueeze(-1)).sum(-2).to(x.dtype)


def rms(x: Tensor, w: Tensor) -> Tensor:
    v = x.float()
    return (w * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS))).to(x.dtype)


def collapse_norm(x: Tensor, pre: Tensor, w: Tensor) -> Tensor:
    return rms(collapse(x, pre), w)


def frequencies(cfg: dict[str, Any], compressed: bool) -> Tensor:
    dim = cfg["qk_rope_head_dim"]
    theta = cfg["compress_rope_theta"] if compressed else cfg["rope_theta"]
    freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if compressed:
        y = cfg["rope_scaling"]

        def bound(rotations: float) -> float:
            return (
                dim
                * math.log(y["original_max_position_embeddings"] / (rotations * 2 * math.pi))
                / (2 * math.log(theta))
            )

        low, high = (
            max(math.floor(bound(y["beta_fast"])), 0),
            min(math.ceil(bound(y["beta_slow"])), dim - 1),
        )
        ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(
            0, 1
        )
        freq = freq / y["factor"] * ramp + freq * (1 - ramp)
    return freq


def rope(x: Tensor, angle: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last 2 n channels of x; angle [..., n] broadcasts against the other axes."""
    n = angle.shape[-1] * 2
    keep, rot = x[..., :-n], x[..., -n:].float().unflatten(-1, (-1, 2))
    cos, sin = angle.cos(), angle.sin()
    if inverse:
        sin = -sin
    a, b = rot[..., 0], rot[..., 1]
    out = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((keep, out.to(x.dtype)), -1)


def moe(
    x: Tensor,
    gate: Tensor,
    bias: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    s1: Tensor,
    s3: Tensor,
    s2: Tensor,
    top: int,
    scale: float,
    limit: float,
) -> tuple[Tensor, Tensor]:
    """Routed and shared experts: output and load of the experts.

    All experts are computed; unchosen ones get weight 0. w1, w3 [E, I, D], w2 [E, D, I].
    """
    e, i, d = w1.shape
    z = F.linear(x.float(), gate)
    s = torch.sqrt(F.softplus(z, threshold=50.0))
    chosen = torch.zeros_like(s).scatter(-1, (s + bias).topk(top, -1).indices, 1.0)
    w = s * chosen
    w = w / (w.sum(-1, keepdim=True) + EPS) * scale
    g = F.linear(x, w1.reshape(e * i, d).to(x.dtype)).unflatten(-1, (e, i)).float()
    u = F.linear(x, w3.reshape(e * i, d).to(x.dtype)).unflatten(-1, (e, i)).float()
    inner = w.unsqueeze(-1) * F.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)
    y = F.linear(inner.flatten(-2).to(x.dtype), w2.permute(1, 0, 2).reshape(d, e * i).to(x.dtype))
    gs, us = F.linear(x, s1.to(x.dtype)).float(), F.linear(x, s3.to(x.dtype)).float()
    shared = F.linear(
        (F.silu(gs.clamp(max=limit)) * us.clamp(-limit, limit)).to(x.dtype), s2.to(x.dtype)
    )
    return y + shared, chosen.flatten(0, -2).mean(0)


def query(
    x: Tensor,
    wq_a: Tensor,
    q_norm: Tensor,
    wq_b: Tensor,
    wkv: Tensor,
    kv_norm: Tensor,
    angle: Tensor,
    heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    qr = rms(F.linear(x, wq_a.to(x.dtype)), q_norm)
    q = rope(F.linear(qr, wq_b.to(x.dtype)).unflatten(-1, (heads, -1)), angle.unsqueeze(-2))
    kv = rope(rms(F.linear(x, wkv.to(x.dtype)), kv_norm), angle)
    return qr, q, kv


def output(o: Tensor, angle: Tensor, wo_a: Tensor, wo_b: Tensor, groups: int) -> Tensor:
    o = rope(o, angle.unsqueeze(-2), inverse=True).flatten(-2).unflatten(-1, (groups, -1))
    a = wo_a.to(o.dtype).unflatten(0, (groups, -1))
    u = torch.cat([F.linear(o[..., j, :], a[j]) for j in range(groups)], -1)
    return F.linear(u, wo_b.to(o.dtype))


def engram_mix(x: Tensor, e: Tensor, wkv: Tensor, qw: Tensor, kw: Tensor) -> Tensor:
    h, d = x.shape[-2:]
    kv = F.linear(e.to(x.dtype), wkv.to(x.dtype)).unflatten(-1, (h + 1, d)).float()
    key, value = kv[..., :h, :], kv[..., h:, :]
    v = x.float()
    dot = (
        (v * qw * kw * key).sum(-1)
        * torch.rsqrt(v.square().mean(-1) + EPS)
        * torch.rsqrt(key.square().mean(-1) + EPS)
        * d**-0.5
    )
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return (v + gate.unsqueeze(-1) * value).to(x.dtype)


def attend(q: Tensor, kv: Tensor, sink: Tensor, bias: Tensor) -> Tensor:
    """q [B, S, H, d], kv [B, K, d], bias [B, 1, S, K + 8] with column K = 0 (the sink) -> [B, S, H, d]."""
    b, s, h, d = q.shape
    extra = torch.zeros(8, dtype=q.dtype, device=q.device)
    extra[0] = 1
    tail = ((sink * d**0.5).to(q.dtype).unsqueeze(-1) * extra).expand(b, s, h, 8)
    qs = torch.cat((q, tail), -1).transpose(1, 2)
    k = torch.cat((F.pad(kv, (0, 8)), F.pad(extra, (d, 0)).expand(b, 8, d + 8)), 1)
    v = F.pad(kv, (0, 0, 0, 8))
    o = F.scaled_dot_product_attention(
        qs,
        k.unsqueeze(1).expand(-1, h, -1, -1),
        v.unsqueeze(1).expand(-1, h, -1, -1),
        bias.expand(-1, h, -1, -1),
        scale=d**-0.5,
    )
    return o.transpose(1, 2)


KERNELS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        mix,
        expand,
        collapse_norm,
        moe,
        query,
        output,
        engram_mix,
        fp8_cache,
        fp4_latent,
        fp4_index,
        mxfp4_weight,
    )
}


def compile_kernels() -> None:
    torch._dynamo.config.recompile_limit = 64
    for name in (
        "mix",
        "expand",
        "collapse_norm",
        "moe",
        "query",
        "output",
        "engram_mix",
        "fp8_cache",
        "fp4_latent",
        "fp4_index",
        "mxfp4_weight",
    ):
        KERNELS[name] = torch.compile(KERNELS[name], dynamic=False)
