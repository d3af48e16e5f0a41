"""Mixture of experts of one layer: router, routed experts, one shared expert.

Legend: T rows, D hidden, E experts, F inner width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.context import StepContext
from engine.model.parameters import empty
from engine.model_config import BlockConfig
from ops.experts import ExpertWeights, clamped_swiglu, routed_experts
from ops.router import route


class MixtureOfExperts(nn.Module):
    """Routed experts plus the shared expert, summed in float32."""

    def __init__(self, config: BlockConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.limit = config.swiglu_limits[layer]
        self.limit_shared = config.swiglu_limits_shared[layer]
        hidden, inner, experts = config.hidden_size, config.intermediate_size, config.num_experts
        self.router = empty(experts, hidden)
        self.router_bias = empty(experts)
        self.gate = empty(experts, inner, hidden, dtype=dtype)
        self.up = empty(experts, inner, hidden, dtype=dtype)
        self.down = empty(experts, hidden, inner, dtype=dtype)
        self.shared_gate = empty(inner, hidden, dtype=dtype)
        self.shared_up = empty(inner, hidden, dtype=dtype)
        self.shared_down = empty(hidden, inner, dtype=dtype)

    def forward(self, x: Tensor, ctx: StepContext) -> Tensor:
        """Return [T, D] float32 for normalised inputs x [T, D]."""
        config = self.config
        logits = nn.functional.linear(x.float(), self.router)
        ids, weights = route(
            logits,
            self.router_bias,
            config.num_experts_used,
            config.expert_weights_scale,
            config.expert_weights_norm,
        )
        ctx.report("expert_ids", self.layer, ids)
        ctx.report("expert_weights", self.layer, weights)
        experts = ExpertWeights(self.gate, self.up, self.down)
        routed = routed_experts(x, ids, weights, experts, self.limit)
        inner = clamped_swiglu(
            nn.functional.linear(x, self.shared_gate),
            nn.functional.linear(x, self.shared_up),
            self.limit_shared,
        )
        return routed + nn.functional.linear(inner.to(x.dtype), self.shared_down).float()
