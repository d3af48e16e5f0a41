"""A differentiable DeepSeek-V4.1 text model for toy sizes, in plain PyTorch.

Attention is written with dense masks over [window keys | compressed rows | sink]; several documents
may be packed in one row (`starts` holds the first position of each token's document). Top-k
selection can be replaced by all visible rows for the first part of training; the indexer then
learns the attention mass through an auxiliary loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kernels import KERNELS, attend, frequencies, rms, rope
from layer import Layer, ones
from shape import Mode
from torch import Tensor, nn

from memory.gguf.maker.engram_constants import engram_arrays
from memory.gguf.maker.shape import Config

NEG = float("-inf")


class Backbone(nn.Module):
    def __init__(self, cfg: dict[str, Any], token_map: list[int]) -> None:
        super().__init__()
        self.cfg = cfg
        v, d = cfg["vocab_size"], cfg["hidden_size"]
        self.embed = nn.Parameter(torch.randn(v, d) * 0.5)
        self.head = nn.Parameter(torch.randn(v, d) * d**-0.5)
        self.norm = ones(d)
        self.layers = nn.ModuleList(
            Layer(cfg, n, cfg["n_routed_experts"], cfg["num_experts_per_tok"])
            for n in range(cfg["num_hidden_layers"])
        )
        self.constants = engram_arrays(Config.from_mapping(cfg), token_map)
        self.tables = nn.ParameterList(
            torch.randn(int(p.sum()), cfg["engram_head_dim"]) * 0.5
            for p in self.constants["primes"]
        )
        for key in ("token_map", "multipliers", "primes", "offsets"):
            self.register_buffer(
                f"h_{key}", torch.as_tensor(self.constants[key].astype(np.int64)), persistent=False
            )
        self.register_buffer("f_window", frequencies(cfg, False), persistent=False)
        self.register_buffer("f_compress", frequencies(cfg, True), persistent=False)

    def hash_rows(self, ids: Tensor, starts: Tensor) -> Tensor:
        """[B, S] -> [layers, B, S, columns]."""
        n = self.cfg["engram_max_ngram_size"]
        pad = int(self.constants["pad_compressed_id"][0])
        c = self.h_token_map[ids]
        local = torch.arange(ids.shape[1], device=ids.device) - starts
        back = [c] + [torch.where(local >= k, F.pad(c, (k, 0))[:, :-k], pad) for k in range(1, n)]
        out = []
        for layer in range(len(self.tables)):
            a, cols = back[0] * self.h_multipliers[layer, 0], []
            for k in range(1, n):
                a = a ^ (back[k] * self.h_multipliers[layer, k])
                cols.append(a.unsqueeze(-1) % self.h_primes[layer, k - 1])
            out.append(torch.cat(cols, -1) + self.h_offsets[layer])
        return torch.stack(out)

    def masks(self, starts: Tensor, dtype: torch.dtype) -> tuple[Tensor, dict[int, Tensor]]:
        """Additive window mask [B, S, S] and visibility [B, S, S/r] (bool) per ratio."""
        s = starts.shape[1]
        pos = torch.arange(s, device=starts.device)
        gap = pos[:, None] - pos[None, :]
        near = (gap >= 0) & (gap < self.cfg["sliding_window"])
        window = near & (starts.unsqueeze(2) == starts.unsqueeze(1))
        visible = {}
        for r in (1, 2):
            first = torch.arange(s // r, device=starts.device) * r
            visible[r] = (first + r - 1 <= pos[:, None]) & (
                starts[:, first].unsqueeze(1) == starts.unsqueeze(2)
            )
        return torch.zeros(window.shape, dtype=dtype, device=window.device).masked_fill_(
            ~window, NEG
        ), visible

    def forward(
        self, ids: Tensor, starts: Tensor, mode: Mode, sample: Tensor | None = None
    ) -> dict[str, Any]:
        """ids, starts [B, S] (S even). sample [B, Q]: query positions for the indexer loss."""
        cfg = self.cfg
        bsz, s = ids.shape
        local = (torch.arange(s, device=ids.device) - starts).float()
        angles = {0: local.unsqueeze(-1) * self.f_window, 1: local.unsqueeze(-1) * self.f_compress}
        window, visible = self.masks(starts, mode.dtype)
        tail = torch.full((bsz, s, 8), NEG, dtype=mode.dtype, device=ids.device)
        tail[..., 0] = 0
        zero = torch.zeros((), dtype=mode.dtype, device=ids.device)
        biases: dict[Any, Tensor] = {0: torch.cat((window, tail), -1).unsqueeze(1)}
        if not mode.top_k:
            for r in (1, 2):
                biases[r] = torch.cat(
                    (window, torch.where(visible[r], zero, NEG), tail), -1
                ).unsqueeze(1)
        rows = self.hash_rows(ids, starts)
        x = self.embed[ids].to(mode.dtype).unsqueeze(2).expand(-1, -1, cfg["hc_mult"], -1)
        pre = torch.zeros(cfg["hc_mult"], device=ids.device)
        pre[0] = 1
        pre = pre.expand(bsz, s, -1).contiguous()
        latent = index_k = bias = candidates = None
        score_grad: Tensor | None = None
        target: Tensor | None = None
        kl: list[Tensor] = []
        taps, loads = [], []
        recall: list[Tensor] = []

        def finish() -> None:
            nonlocal score_grad, target
            if score_grad is not None and target is not None:
                mass = target.sum(-1, keepdim=True)
                p = target / (mass + 1e-9)
                logq = torch.log_softmax(score_grad.clamp(min=-1e4), -1)
                loss = (p * ((p + 1e-9).log() - logq)).sum(-1)
                kl.append((loss * (mass[..., 0] > 1e-3)).mean())
            score_grad = target = None

        for n, layer in enumerate(self.layers):
            if n in cfg["engram_layer_ids"]:
                k = cfg["engram_layer_ids"].index(n)
                x = KERNELS["engram_mix"](
                    x,
                    F.embedding(rows[k], self.tables[k]).flatten(-2),
                    layer.e_wkv,
                    layer.e_q,
                    layer.e_k,
                )
            if n in cfg["dspark_target_layer_ids"]:
                taps.append(x.float().mean(2).to(mode.dtype))
            r = layer.ratio
            angle = angles[min(r, 1)]
            pre_a, post, c = layer.mixer(x, "attn")
            h = KERNELS["collapse_norm"](x, pre, layer.attn_norm)
            qr, q, kv = KERNELS["query"](
                h,
                layer.wq_a,
                layer.q_norm,
                layer.wq_b,
                layer.wkv,
                layer.kv_norm,
                angle,
                cfg["num_attention_heads"],
            )
            if mode.quant_cache:
                kv = KERNELS["fp8_cache"](kv)
            if layer.kv_source:
                v = F.linear(h, layer.c_wkv.to(h.dtype))
                if r > 1:
                    pair = F.linear(h, layer.c_wgate.to(h.dtype)).float().unflatten(1, (-1, r))
                    v = (
                        (torch.softmax(pair, 2) * v.float().unflatten(1, (-1, r)))
                        .sum(2)
                        .to(h.dtype)
                    )
                raw = rms(v, layer.c_norm)
                first = angle[:, ::r]
                latent = rope(raw, first)
                index_k = rope(
                    rms(F.linear(raw.detach(), layer.i_wk.to(h.dtype)), layer.i_knorm), first
                )
                if mode.quant_cache:
                    latent, index_k = KERNELS["fp4_latent"](latent), KERNELS["fp4_index"](index_k)
            if layer.index_source:
                finish()
                heads, dim = cfg["index_n_heads"], cfg["index_head_dim"]
                iq = rope(
                    F.linear(qr.detach(), layer.i_wq.to(h.dtype)).unflatten(-1, (heads, dim)),
                    angle.unsqueeze(-2),
                )
                if mode.quant_cache:
                    iq = KERNELS["fp4_index"](iq)
                iw = F.linear(h.detach(), layer.i_wp.to(h.dtype)).float() * (dim * heads) ** -0.5
                if sample is not None:
                    at = sample.unsqueeze(-1)
                    sq = iq.gather(1, at.unsqueeze(-1).expand(-1, -1, heads, dim))
                    sw = iw.gather(1, at.expand(-1, -1, heads))
                    vis = visible[r].gather(1, at.expand(-1, -1, visible[r].shape[-1]))
                    sc = (
                        torch.einsum("bqhd,bkd->bhqk", sq, index_k).float().relu()
                        * sw.transpose(1, 2).unsqueeze(-1)
                    ).sum(1)
                    score_grad = sc.masked_fill(~vis, -1e4)
                if mode.top_k:
                    with torch.no_grad():
                        score = torch.zeros(bsz, s, index_k.shape[1], device=ids.device)
                        for j in range(heads):
                            score += (
                                torch.einsum("bqd,bkd->bqk", iq[:, :, j], index_k).float().relu()
                                * iw[:, :, j : j + 1]
                            )
                        score = score.masked_fill(~visible[r], NEG)
                        if candidates is not None:
                            score = score.masked_fill(~candidates, NEG)
                        take = score.topk(min(cfg["index_topk"], score.shape[-1]), -1)
                        keep = torch.zeros_like(score, dtype=torch.bool).scatter_(
                            -1, take.indices, take.values > NEG
                        )
                        if n == cfg["candidate_source_layer_id"]:
                            candidates = self.candidates(score)
                        bias = torch.cat(
                            (window, torch.where(keep, zero, NEG), tail), -1
                        ).unsqueeze(1)
            kv_all, b = kv, biases[0]
            if r:
                kv_all = torch.cat((kv, latent), 1)
                b = bias if mode.top_k else biases[r]
            if r and sample is not None:
                with torch.no_grad():
                    at = sample.unsqueeze(-1)
                    sq = q.gather(1, at.unsqueeze(-1).expand(-1, -1, *q.shape[2:]))
                    sb = b[:, 0].gather(1, at.expand(-1, -1, b.shape[-1]))[:, :, :-8]
                    if mode.top_k:  # the target is the mass over all visible rows
                        vis = visible[r].gather(1, at.expand(-1, -1, visible[r].shape[-1]))
                        sb = torch.cat((sb[..., :s], torch.where(vis, zero, NEG)), -1)
                    z = (
                        torch.einsum("bqhd,bkd->bhqk", sq, kv_all).float() * q.shape[-1] ** -0.5
                        + sb.unsqueeze(1).float()
                    )
                    mass = torch.softmax(z, -1)[..., s:].sum(1)
                    target = mass if target is None else target + mass
            o = attend(q, kv_all, layer.attn_sink, b)
            a = KERNELS["output"](o, angle, layer.wo_a, layer.wo_b, cfg["o_groups"])
            x = KERNELS["expand"](x, a, post, c)
            pre_f, post, c = layer.mixer(x, "ffn")
            f, load = layer.ffn(KERNELS["collapse_norm"](x, pre_a, layer.ffn_norm), mode)
            x = KERNELS["expand"](x, f, post, c)
            pre = pre_f
            loads.append(load)
        finish()
        y = KERNELS["collapse_norm"](x, pre, self.norm)
        return {
            "y": y,
            "taps": torch.cat(taps, -1),
            "kl": sum(kl) / max(len(kl), 1),
            "loads": loads,
            "recall": recall,
        }

    def candidates(self, score: Tensor) -> Tensor:
        size, blocks = self.cfg["candidate_block_size"], self.cfg["candidate_topk_blocks"]
        b, s, n = score.shape
        best = F.pad(score, (0, -n % size), value=NEG).unflatten(-1, (-1, size)).amax(-1)
        newest = (
            torch.arange(s, device=score.device) // size
        )  # the source layer has one row per token
        best = best.scatter(-1, newest.expand(b, s).unsqueeze(-1), float("inf"))
        take = best.topk(min(blocks, best.shape[-1]), -1)
        keep = torch.zeros_like(best, dtype=torch.bool).scatter_(
            -1, take.indices, take.values > NEG
        )
        return keep.repeat_interleave(size, -1)[..., :n]

    def logits(self, y: Tensor) -> Tensor:
        return F.linear(y, self.head.to(y.dtype)).float()
