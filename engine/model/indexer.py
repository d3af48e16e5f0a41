"""Indexer of an index source layer: selects the compressed rows that attention reads.

Legend: T rows (queries), I index heads, C index_head_dim, N compressed rows, K selected rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.context import StepContext
from engine.model.parameters import empty
from engine.model.state import CacheState
from engine.model_config import ModelConfig
from ops.indexer import index_scores
from ops.kv_quant import fake_quant_index
from ops.rope import apply_rope
from ops.top_k import candidate_mask, select_rows

_TILE_BYTES = 64 * 1024 * 1024  # of float32 products [tile rows, I, N]


class Indexer(nn.Module):
    """Scores the rows of its KV source and keeps the best `index_top_k` of each query.

    The candidate source additionally decides which blocks later index sources may choose from; its
    own choice is made from all rows.
    """

    def __init__(
        self, config: ModelConfig, layer: int, fake_quant: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.source = config.kv_source(layer)
        self.ratio = config.compress_ratios[layer]
        self.fake_quant = fake_quant
        candidate = config.candidate_source_layer
        self.is_candidate_source = candidate == layer
        self.uses_candidates = candidate is not None and layer > candidate
        heads, width = config.index_num_heads, config.index_head_dim
        self.scale = width**-0.5 * heads**-0.5
        self.q_b = empty(heads * width, config.q_lora_rank, dtype=dtype)
        self.weights_proj = empty(heads, config.hidden_size)

    def forward(self, x: Tensor, q_latent: Tensor, ctx: StepContext, state: CacheState) -> None:
        """Set ctx.selected (and ctx.candidates) for this and the following layers.

        Args:
            x: [T, D] normalised attention input.
            q_latent: [T, q_lora_rank] normalised query bottleneck.
            ctx: the step; written.
            state: cache; index keys of this step's tokens are already stored.
        """
        config = self.config
        queries = nn.functional.linear(q_latent, self.q_b)
        queries = queries.unflatten(-1, (config.index_num_heads, config.index_head_dim))
        cos, sin = ctx.rope(self.ratio)
        queries = apply_rope(queries, cos.unsqueeze(-2), sin.unsqueeze(-2))
        if self.fake_quant:
            queries = fake_quant_index(queries)
        weights = nn.functional.linear(x.float(), self.weights_proj) * self.scale

        cache = state.index_key[self.source]
        bound = min(cache.shape[1], -(-ctx.shape.context_bound // self.ratio))
        visible = ctx.num_visible(self.ratio)
        if ctx.shape.prefill:
            keys = cache[ctx.slots[:1], :bound].squeeze(0)
            tile = max(1, _TILE_BYTES // (4 * config.index_num_heads * max(bound, 1)))
        else:
            keys = cache[ctx.slots, :bound]
            tile = ctx.slots.shape[0]
        selected, candidates = [], []
        for start in range(0, x.shape[0], tile):
            part = slice(start, start + tile)
            scores = index_scores(
                queries[part], weights[part], keys if keys.dim() == 2 else keys[part], visible[part]
            )
            if self.is_candidate_source:
                candidates.append(
                    candidate_mask(
                        scores,
                        visible[part],
                        config.candidate_block_size,
                        config.candidate_top_k_blocks,
                    )
                )
            elif self.uses_candidates and ctx.candidates is not None:
                scores = torch.where(ctx.candidates[part], scores, float("-inf"))
            selected.append(select_rows(scores, visible[part], config.index_top_k))
        ctx.selected = torch.cat(selected)
        ctx.report("topk", self.layer, ctx.selected)
        if candidates:
            ctx.candidates = torch.cat(candidates)
            ctx.report("candidates", self.layer, ctx.candidates)
