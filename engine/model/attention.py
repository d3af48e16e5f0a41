"""Attention of one layer: low-rank query, window and selected compressed rows, grouped output.

Legend: T rows, D hidden, A heads, C head_dim, W window, K selected rows, G output groups.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.context import StepContext, decode_window, previous_window, write_ring
from engine.model.parameters import empty
from engine.model.state import CacheState
from engine.model_config import BlockConfig
from ops.attention import sink_attention
from ops.kv_quant import fake_quant_window
from ops.norm import rms_norm
from ops.rope import apply_rope


class AttentionProjections(nn.Module):
    """The projections that backbone layers and draft stages have in common."""

    def __init__(self, config: BlockConfig, fake_quant: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.fake_quant = fake_quant
        hidden, heads, width = config.hidden_size, config.num_heads, config.head_dim
        groups, rank = config.o_groups, config.o_lora_rank
        self.q_a = empty(config.q_lora_rank, hidden, dtype=dtype)
        self.q_a_norm = empty(config.q_lora_rank)
        self.q_b = empty(heads * width, config.q_lora_rank, dtype=dtype)
        self.kv = empty(width, hidden, dtype=dtype)
        self.kv_norm = empty(width)
        self.sinks = empty(heads)
        self.o_a = empty(groups, rank, heads * width // groups, dtype=dtype)
        self.o_b = empty(hidden, groups * rank, dtype=dtype)

    def query(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the bottleneck [T, q_lora_rank] and rotated queries [T, A, C]."""
        latent = rms_norm(nn.functional.linear(x, self.q_a), self.q_a_norm, self.config.norm_eps)
        q = nn.functional.linear(latent, self.q_b)
        q = q.unflatten(-1, (self.config.num_heads, self.config.head_dim))
        return latent, apply_rope(q, rope[0].unsqueeze(-2), rope[1].unsqueeze(-2))

    def key_value(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Return this step's window entries [T, C]: normalised, rotated, rounded as stored."""
        kv = rms_norm(nn.functional.linear(x, self.kv), self.kv_norm, self.config.norm_eps)
        kv = apply_rope(kv, *rope)
        return fake_quant_window(kv) if self.fake_quant else kv

    def output(self, o: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate [T, A, C] back at the query's position and project to [T, D], group by group."""
        o = apply_rope(o, rope[0].unsqueeze(-2), rope[1].unsqueeze(-2), inverse=True)
        grouped = o.reshape(o.shape[0], self.config.o_groups, -1).transpose(0, 1)  # [G, T, in]
        ranks = torch.bmm(grouped, self.o_a.transpose(1, 2)).transpose(0, 1).flatten(1)
        return nn.functional.linear(ranks, self.o_b)

    @property
    def scale(self) -> float:
        """Factor on the scores, whatever the context length."""
        return float(self.config.head_dim**-0.5)


class Attention(AttentionProjections):
    """Backbone attention; reads the compressed rows of its KV source if its ratio is not 0."""

    def __init__(
        self,
        config: BlockConfig,
        layer: int,
        ratio: int,
        source: int | None,
        fake_quant: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(config, fake_quant, dtype)
        self.layer = layer
        self.ratio = ratio
        self.source = source

    def forward(self, q: Tensor, kv: Tensor, ctx: StepContext, state: CacheState) -> Tensor:
        """Attend and store this step's window entries.

        Args:
            q: [T, A, C] rotated queries.
            kv: [T, C] this step's window entries.
            ctx: the step, with the selection of the latest index source.
            state: cache; written: window of this layer.

        Returns:
            [T, A, C], not yet rotated back.
        """
        ring = state.window[self.layer]
        ctx.report("window_kv", self.layer, kv)
        if ctx.shape.prefill:
            previous = previous_window(ring, ctx, self.config.window)
            write_ring(ring, ctx, kv)
            return self._attend_chunk(q, torch.cat((previous, kv.to(ring.dtype))), ctx, state)
        write_ring(ring, ctx, kv)
        window, mask = decode_window(ring, ctx.slots, ctx.positions, self.config.window)
        everything = slice(0, q.shape[0])
        return self._attend(q, window, mask, ctx, state, everything)

    def _attend_chunk(
        self, q: Tensor, entries: Tensor, ctx: StepContext, state: CacheState
    ) -> Tensor:
        """Attend tile by tile; entries [W - 1 + T, C] holds the rows before the chunk first."""
        window, rows, tile = self.config.window, q.shape[0], ctx.shape.tile_rows
        out = []
        for start in range(0, rows, tile):
            end = min(start + tile, rows)
            index = torch.arange(end - start + window - 1, device=q.device)
            query = torch.arange(end - start, device=q.device).unsqueeze(-1)
            position = ctx.positions[start:end].unsqueeze(-1) - (window - 1) + index - query
            mask = (index >= query) & (index < query + window) & (position >= 0)
            part = slice(start, end)
            near = entries[start : end + window - 1]
            out.append(self._attend(q[part], near, mask, ctx, state, part))
        return torch.cat(out)

    def _attend(
        self,
        q: Tensor,
        window: Tensor,
        mask: Tensor,
        ctx: StepContext,
        state: CacheState,
        part: slice,
    ) -> Tensor:
        rows, seen = None, None
        if self.source is not None and ctx.selected is not None:
            ids = ctx.selected[part]
            seen = ids >= 0
            slots = ctx.slots[:1] if ctx.shape.prefill else ctx.slots
            rows = state.latent[self.source][slots.unsqueeze(-1), ids.clamp(min=0)]
        return sink_attention(q, window, mask, rows, seen, self.sinks, self.scale)
