"""A small configuration with every kind of layer, random weights, and steps made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.config import EngineConfig
from engine.model.context import StepContext, make_context
from engine.model.inputs import StepInputs, StepShape
from engine.model.precision import Precision
from engine.model.state import CacheState, allocate_state
from engine.model_config import EngramConfig, ModelConfig
from ops.rope import inverse_frequencies

NUM_SLOTS = 3


@pytest.fixture
def small_config() -> ModelConfig:
    """Layers: window only, source of ratio 2, reader, candidate source of ratio 1, reindexer."""
    engram = EngramConfig(
        layers=(1, 3),
        ngram_size=3,
        num_heads=2,
        row_dim=6,
        multipliers=((70368744177663, 3, 5), (9, 140737488355327, 11)),  # 46 and 47 bits
        bucket_sizes=((101, 103, 107, 109), (113, 127, 131, 137)),
        row_offsets=((0, 101, 204, 311), (420, 533, 660, 791)),
        pad_token_id=2,
        token_map=tuple((7 * token + 3) % 31 for token in range(50)),
    )
    return ModelConfig(
        num_layers=5,
        hidden_size=40,
        vocab_size=50,
        context_length=256,
        num_heads=4,
        head_dim=32,
        rope_dim=8,
        q_lora_rank=24,
        o_groups=2,
        o_lora_rank=12,
        window=5,
        norm_eps=1e-20,
        rope_theta=10000.0,
        num_experts=6,
        num_experts_used=2,
        num_shared_experts=1,
        intermediate_size=16,
        expert_weights_scale=1.5,
        expert_weights_norm=True,
        swiglu_limits=(0.0, 0.4, 0.5, 0.6, 0.7),
        swiglu_limits_shared=(0.0, 0.3, 0.4, 0.5, 0.6),
        hc_streams=3,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        compress_ratios=(0, 2, 2, 1, 1),
        compress_rope_theta=160000.0,
        kv_source_layers=(1, 3),
        index_source_layers=(1, 3, 4),
        index_num_heads=3,
        index_head_dim=32,
        index_top_k=7,
        candidate_source_layer=3,
        candidate_top_k_blocks=3,
        candidate_block_size=4,
        yarn_factor=4.0,
        yarn_original_context=64,
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
        engram=engram,
    )


@pytest.fixture
def randomise() -> Callable[..., nn.Module]:
    """Fill a module's weights: randomise(module, seed, device) draws matrices of unit gain."""

    def fill(module: nn.Module, seed: int, device: str = "cpu") -> nn.Module:
        g = torch.Generator().manual_seed(seed)
        for path, parameter in list(module.named_parameters()):
            value = torch.randn(parameter.shape, generator=g)
            if parameter.dim() > 1:
                value *= parameter.shape[-1] ** -0.5
            parent, _, name = path.rpartition(".")
            value = value.to(device, parameter.dtype)
            setattr(module.get_submodule(parent), name, nn.Parameter(value, requires_grad=False))
        return module

    return fill


@pytest.fixture
def make_state(small_config: ModelConfig) -> Callable[..., CacheState]:
    """Allocate a cache of 3 slots: make_state(device, config=None, **settings)."""

    def make(device: str = "cpu", config: ModelConfig | None = None, **settings: Any) -> CacheState:
        settings = {"max_num_seqs": NUM_SLOTS, "max_model_len": 96, **settings}
        precision = Precision(compute=torch.float32, residual=torch.float32)
        return allocate_state(
            config or small_config, None, EngineConfig(**settings), precision, torch.device(device)
        )

    return make


@pytest.fixture
def make_step(small_config: ModelConfig) -> Callable[..., StepContext]:
    """Make a step's context: make_step(positions, slots, prefill=..., device=...).

    `slots` is one number for all rows or one for each; positions are those of padding rows too.
    """

    def make(
        positions: Sequence[int],
        slots: int | Sequence[int],
        *,
        prefill: bool,
        device: str = "cpu",
        bound: int = 96,
        tile_rows: int = 64,
        engram: tuple[Tensor, ...] = (),
        probe: Callable[[str, int, Tensor], None] | None = None,
    ) -> StepContext:
        if isinstance(slots, int):
            slots = [slots] * len(positions)
        place = torch.tensor([list(positions), list(slots)], device=device)
        inputs = StepInputs(torch.zeros_like(place[0]), place[0], place[1], engram)
        width, config = small_config.rope_dim, small_config
        return make_context(
            inputs,
            StepShape(prefill=prefill, context_bound=bound, tile_rows=tile_rows),
            NUM_SLOTS,
            inverse_frequencies(width, config.rope_theta).to(device),
            inverse_frequencies(width, config.compress_rope_theta).to(device),
            probe,
        )

    return make
