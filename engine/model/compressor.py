"""Compressor of a KV source layer: turns tokens into latents and index keys, and stores them.

Legend: T rows, D hidden, C head_dim, I index_head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.context import StepContext, write_ring, write_rows
from engine.model.parameters import empty
from engine.model.state import CacheState
from engine.model_config import ModelConfig
from ops.compressor import pool_pair
from ops.kv_quant import fake_quant_index, fake_quant_latent
from ops.norm import rms_norm
from ops.rope import apply_rope


class Compressor(nn.Module):
    """Owns the compressed rows of its layer and of the layers that reuse them.

    A row is made from one token (ratio 1) or from a disjoint pair (ratio 2). Weights are float32.
    """

    def __init__(self, config: ModelConfig, layer: int, fake_quant: bool) -> None:
        super().__init__()
        self.layer = layer
        self.ratio = config.compress_ratios[layer]
        self.eps = config.norm_eps
        self.fake_quant = fake_quant
        hidden, width = config.hidden_size, config.head_dim
        self.kv = empty(width, hidden)
        self.gate = empty(width, hidden) if self.ratio > 1 else None
        self.norm = empty(width)
        self.index_k = empty(config.index_head_dim, width)
        self.index_k_norm = empty(config.index_head_dim)

    def forward(self, x: Tensor, ctx: StepContext, state: CacheState) -> None:
        """Store the rows that these tokens complete.

        Args:
            x: [T, D], the layer's normalised attention input.
            ctx: the step.
            state: written: latent, index_key and, for ratio 2, carry of this layer.
        """
        pooled = nn.functional.linear(x.float(), self.kv)
        if self.gate is not None:
            score = nn.functional.linear(x.float(), self.gate)
            pooled = self._pool(pooled, score, ctx, state)
        # The pooled value is rounded to the activations' type before the norm, as in the reference.
        latent = rms_norm(pooled.to(x.dtype), self.norm, self.eps)
        key = nn.functional.linear(latent.float(), self.index_k).to(x.dtype)
        key = rms_norm(key, self.index_k_norm, self.eps)
        cos, sin = ctx.compress_rope if self.ratio == 1 else ctx.pair_rope
        latent, key = apply_rope(latent, cos, sin), apply_rope(key, cos, sin)
        if self.fake_quant:
            latent, key = fake_quant_latent(latent), fake_quant_index(key)
        completes = ctx.positions % self.ratio == self.ratio - 1
        slots = torch.where(completes, ctx.slots, ctx.scratch_slot)
        rows = torch.div(ctx.positions, self.ratio, rounding_mode="floor")
        write_rows(state.latent[self.layer], slots, rows, latent)
        write_rows(state.index_key[self.layer], slots, rows, key)

    def _pool(self, value: Tensor, score: Tensor, ctx: StepContext, state: CacheState) -> Tensor:
        """Pool each token with the one before it; only tokens that complete a pair are used."""
        carry = state.carry[self.layer]
        own = torch.stack((value, score), 1)  # [T, 2, C]
        if ctx.shape.prefill:
            before = carry[ctx.slots[:1], (ctx.positions[:1] - 1) % carry.shape[1]]
            previous = torch.cat((before, own[:-1]))
            write_ring(carry, ctx, own)
        else:
            write_ring(carry, ctx, own)
            previous = carry[ctx.slots, (ctx.positions - 1) % carry.shape[1]]
        return pool_pair(previous[:, 0], previous[:, 1], value, score)
