"""Weights of one backbone layer or draft stage."""

from __future__ import annotations

from typing import Any

import torch
from kernels import KERNELS
from shape import Mode
from torch import Tensor, nn


def matrix(rows: int, cols: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, cols) * gain * cols**-0.5)


def ones(n: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(n))


class Layer(nn.Module):
    """Weights of one backbone layer (index >= 0) or draft stage."""

    def __init__(self, cfg: dict[str, Any], index: int, experts: int, top: int) -> None:
        super().__init__()
        d, hd, heads, i = (
            cfg["hidden_size"],
            cfg["head_dim"],
            cfg["num_attention_heads"],
            cfg["moe_intermediate_size"],
        )
        streams, rank, groups, orank = (
            cfg["hc_mult"],
            cfg["q_lora_rank"],
            cfg["o_groups"],
            cfg["o_lora_rank"],
        )
        damp = (2 * cfg["num_hidden_layers"]) ** -0.5
        self.cfg, self.index, self.top = cfg, index, top
        self.ratio = cfg["compress_ratios"][index] if index < cfg["num_hidden_layers"] else 0
        self.attn_norm, self.ffn_norm = ones(d), ones(d)
        self.wq_a, self.q_norm, self.wq_b = matrix(rank, d), ones(rank), matrix(heads * hd, rank)
        self.wkv, self.kv_norm = matrix(hd, d), ones(hd)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.wo_a, self.wo_b = (
            matrix(groups * orank, heads * hd // groups),
            matrix(d, groups * orank, 2 * damp),
        )
        self.gate = matrix(experts, d, 0.5)
        self.gate_bias = nn.Parameter(torch.zeros(experts), requires_grad=False)
        self.w1 = nn.Parameter(torch.randn(experts, i, d) * d**-0.5)
        self.w3 = nn.Parameter(torch.randn(experts, i, d) * d**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, d, i) * i**-0.5 * damp)
        self.s1, self.s3, self.s2 = matrix(i, d), matrix(i, d), matrix(d, i, damp)
        for part in ("attn", "ffn"):
            base = torch.randn(streams * (streams + 2)) * 0.4
            base[:streams] -= 0.5
            base[2 * streams :] += 3.5 * torch.eye(streams).flatten()
            setattr(
                self,
                f"hc_{part}_fn",
                nn.Parameter(
                    torch.randn(streams * (streams + 2), streams * d) * 0.2 * (streams * d) ** -0.5
                ),
            )
            setattr(self, f"hc_{part}_base", nn.Parameter(base))
            setattr(self, f"hc_{part}_scale", nn.Parameter(torch.ones(3)))
        backbone = index < cfg["num_hidden_layers"]
        self.kv_source = backbone and index in cfg["kv_source_layer_ids"]
        self.index_source = backbone and index in cfg["index_source_layer_ids"]
        if self.kv_source:
            self.c_wkv, self.c_norm = matrix(hd, d), ones(hd)
            if self.ratio > 1:
                self.c_wgate = matrix(hd, d, 0.5)
            self.i_wk, self.i_knorm = matrix(cfg["index_head_dim"], hd), ones(cfg["index_head_dim"])
        if self.index_source:
            self.i_wq = matrix(cfg["index_n_heads"] * cfg["index_head_dim"], rank)
            self.i_wp = nn.Parameter(torch.randn(cfg["index_n_heads"], d) * d**-0.5 * 2)
        if backbone and index in cfg["engram_layer_ids"]:
            width = (
                (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"] * cfg["engram_head_dim"]
            )
            self.e_wkv = matrix((streams + 1) * d, width)
            self.e_q, self.e_k = (
                nn.Parameter(torch.ones(streams, d)),
                nn.Parameter(torch.ones(streams, d)),
            )

    def mixer(self, x: Tensor, part: str) -> tuple[Tensor, Tensor, Tensor]:
        fn, scale, base = (getattr(self, f"hc_{part}_{name}") for name in ("fn", "scale", "base"))
        iters, eps = self.cfg["hc_sinkhorn_iters"], self.cfg["hc_eps"]
        return KERNELS["mix"](x, fn, scale, base, iters, eps)

    def ffn(self, x: Tensor, mode: Mode) -> tuple[Tensor, Tensor]:
        w = [self.w1, self.w3, self.w2]
        if mode.quant_weights:
            w = [KERNELS["mxfp4_weight"](v) for v in w]
        return KERNELS["moe"](
            x,
            self.gate,
            self.gate_bias,
            *w,
            self.s1,
            self.s3,
            self.s2,
            self.top,
            self.cfg["routed_scaling_factor"],
            self.cfg["swiglu_limit"],
        )
