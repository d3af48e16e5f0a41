"""The DSpark block drafter."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from backbone import NEG, Backbone
from kernels import KERNELS, attend, collapse, frequencies, rms, rope
from layer import Layer, matrix, ones
from shape import Mode
from torch import Tensor, nn


class Draft(nn.Module):
    """DSpark: drafts a block after each anchor position p, given the token at p + 1."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        super().__init__()
        self.cfg = cfg
        d, v, rank = cfg["hidden_size"], cfg["vocab_size"], cfg["dspark_markov_rank"]
        layers = cfg["num_hidden_layers"]
        self.stages = nn.ModuleList(
            Layer(
                cfg, layers + n, cfg["dspark_n_routed_experts"], cfg["dspark_num_experts_per_tok"]
            )
            for n in range(cfg["num_nextn_predict_layers"])
        )
        self.main_proj, self.main_norm, self.norm = (
            matrix(d, d * len(cfg["dspark_target_layer_ids"])),
            ones(d),
            ones(d),
        )
        self.m_embed, self.m_head = nn.Parameter(torch.randn(v, rank)), matrix(v, rank, 0.3)
        self.confidence = nn.Parameter(torch.zeros(1, d + rank))
        self.register_buffer("freq", frequencies(cfg, False), persistent=False)

    def forward(
        self,
        backbone: Backbone,
        taps: Tensor,
        starts: Tensor,
        anchors: Tensor,
        ids: Tensor,
        noise: int,
        mode: Mode,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """taps [B, S, 3D]; anchors [B, A] positions p; ids [B, A] token at p + 1. Returns block logits without Markov
        bias [B·A, block, V], y [B·A, block, D] and expert loads."""
        cfg = self.cfg
        w, n = cfg["sliding_window"], cfg["dspark_block_size"]
        b, a = anchors.shape
        m = rms(F.linear(taps, self.main_proj.to(taps.dtype)), self.main_norm)
        local = torch.arange(taps.shape[1], device=taps.device) - starts
        angle_m = local.float().unsqueeze(-1) * self.freq
        at = anchors.unsqueeze(-1) - torch.arange(w, device=anchors.device)
        ok = at >= starts.gather(1, anchors).unsqueeze(-1)
        at = at.clamp(min=0)
        p = local.gather(1, anchors)
        pos = (p.unsqueeze(-1) + 1 + torch.arange(n, device=anchors.device)).reshape(b * a, n)
        angle = pos.float().unsqueeze(-1) * self.freq
        block = torch.full((b * a, n), noise, device=ids.device)
        block[:, 0] = ids.reshape(-1)
        x = backbone.embed[block].to(mode.dtype).unsqueeze(2).expand(-1, -1, cfg["hc_mult"], -1)
        pre = torch.zeros(cfg["hc_mult"], device=ids.device)
        pre[0] = 1
        pre = pre.expand(b * a, n, -1).contiguous()
        bias = torch.zeros(b * a, 1, n, w + n + 8, dtype=mode.dtype, device=ids.device)
        bias[..., :w] = torch.where(ok, 0.0, NEG).to(mode.dtype).reshape(b * a, 1, 1, w)
        bias[..., w + n + 1 :] = NEG
        pad = -bias.shape[-1] % 8
        loads = []
        for stage in self.stages:
            ctx = rope(rms(F.linear(m, stage.wkv.to(m.dtype)), stage.kv_norm), angle_m)
            pre_a, post, c = stage.mixer(x, "attn")
            h = KERNELS["collapse_norm"](x, pre, stage.attn_norm)
            _, q, kv = KERNELS["query"](
                h,
                stage.wq_a,
                stage.q_norm,
                stage.wq_b,
                stage.wkv,
                stage.kv_norm,
                angle,
                cfg["num_attention_heads"],
            )
            if mode.quant_cache:
                ctx, kv = KERNELS["fp8_cache"](ctx), KERNELS["fp8_cache"](kv)
            near = ctx.gather(1, at.reshape(b, -1, 1).expand(-1, -1, ctx.shape[-1])).reshape(
                b * a, w, -1
            )
            full = F.pad(bias, (0, pad), value=NEG)[..., : bias.shape[-1]]
            o = attend(q, torch.cat((near, kv), 1), stage.attn_sink, full)
            x = KERNELS["expand"](
                x, KERNELS["output"](o, angle, stage.wo_a, stage.wo_b, cfg["o_groups"]), post, c
            )
            pre_f, post, c = stage.mixer(x, "ffn")
            f, load = stage.ffn(KERNELS["collapse_norm"](x, pre_a, stage.ffn_norm), mode)
            x = KERNELS["expand"](x, f, post, c)
            pre = pre_f
            loads.append(load)
        y = collapse(x, pre)
        return backbone.logits(rms(y, self.norm)), y, loads

    def markov(self, previous: Tensor) -> Tensor:
        return F.linear(self.m_embed[previous], self.m_head)

    def confidence_logit(self, y: Tensor, previous: Tensor) -> Tensor:
        return F.linear(
            torch.cat((y.float(), self.m_embed[previous]), -1), self.confidence
        ).squeeze(-1)
