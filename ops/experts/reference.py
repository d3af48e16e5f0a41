"""Routed and shared experts: clamped SwiGLU, computed without asking the host which expert is used.

Legend: T rows, K chosen experts, E experts, F inner width, D hidden, P = T * K pairs, B tile rows.
The sum over a row's experts always runs in the order of `expert_ids`, so results do not depend on
how the rows were grouped.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE_ROWS = 32


class ExpertWeights(NamedTuple):
    """Matrices of all experts of a layer, one float type."""

    gate: Tensor
    """[E, F, D]."""
    up: Tensor
    """[E, F, D]."""
    down: Tensor
    """[E, D, F]."""


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Return silu(min(gate, limit)) * clamp(up, -limit, limit) in float32; limit 0 clamps nothing.

    Args:
        gate, up: [..., F] any float type.
    """
    gate, up = gate.float(), up.float()
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return torch.nn.functional.silu(gate) * up


def routed_experts(
    x: Tensor,
    expert_ids: Tensor,
    route_weights: Tensor,
    experts: ExpertWeights,
    limit: float,
) -> Tensor:
    """Return the weighted sum of the chosen experts' outputs.

    Args:
        x: [T, D].
        expert_ids: [T, K] int64.
        route_weights: [T, K] float32, multiplied into the inner vector before the down projection.
        experts: matrices in the type of `x`.
        limit: SwiGLU clamp.

    Returns:
        [T, D] float32.
    """
    t, k = expert_ids.shape
    step = _per_pair if t * k <= max(experts.gate.shape[0], 16) else _per_tile
    return step(x, expert_ids, route_weights, experts, limit)


def _per_pair(
    x: Tensor,
    expert_ids: Tensor,
    route_weights: Tensor,
    experts: ExpertWeights,
    limit: float,
) -> Tensor:
    """Few rows: gather the weights of each (row, expert) pair."""
    t, k = expert_ids.shape
    flat = expert_ids.flatten()
    rows = x.repeat_interleave(k, 0).unsqueeze(-1)  # [P, D, 1]
    gate = torch.bmm(experts.gate[flat], rows).squeeze(-1)
    up = torch.bmm(experts.up[flat], rows).squeeze(-1)
    inner = clamped_swiglu(gate, up, limit) * route_weights.flatten().unsqueeze(-1)
    out = torch.bmm(experts.down[flat], inner.to(x.dtype).unsqueeze(-1)).squeeze(-1)
    return out.float().view(t, k, -1).sum(1)


def _per_tile(
    x: Tensor,
    expert_ids: Tensor,
    route_weights: Tensor,
    experts: ExpertWeights,
    limit: float,
) -> Tensor:
    """Many rows: sort pairs by expert and multiply tiles that belong to one expert each.

    The number of tiles, P / B + E, is fixed by the shapes, so nothing is read back to the host.
    """
    t, k = expert_ids.shape
    num_experts, pairs, device = experts.gate.shape[0], t * k, x.device
    num_tiles = pairs // TILE_ROWS + num_experts
    flat = expert_ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=device).scatter_add(
        0, flat, torch.ones_like(flat)
    )
    tiles = (counts + TILE_ROWS - 1) // TILE_ROWS
    tile_end = tiles.cumsum(0)
    first_pair = counts.cumsum(0) - counts
    sorted_expert = flat[order]
    rank = torch.arange(pairs, device=device) - first_pair[sorted_expert]
    place = (tile_end - tiles)[sorted_expert] * TILE_ROWS + rank  # row of the tile array
    tile_expert = torch.searchsorted(tile_end, torch.arange(num_tiles, device=device), right=True)
    tile_expert = tile_expert.clamp(max=num_experts - 1)

    pair_at = torch.full((num_tiles * TILE_ROWS,), pairs, dtype=torch.int64, device=device)
    pair_at = pair_at.scatter(0, place, order)  # pair number, `pairs` where a tile is not full
    row_at = (pair_at // k).clamp(max=t - 1)
    weight_at = torch.cat((route_weights.flatten(), route_weights.new_zeros(1)))[pair_at]
    tiled = x[row_at].view(num_tiles, TILE_ROWS, -1)
    gate = torch.bmm(tiled, experts.gate[tile_expert].transpose(1, 2))
    up = torch.bmm(tiled, experts.up[tile_expert].transpose(1, 2))
    inner = clamped_swiglu(gate, up, limit) * weight_at.view(num_tiles, TILE_ROWS, 1)
    out = torch.bmm(inner.to(x.dtype), experts.down[tile_expert].transpose(1, 2)).flatten(0, 1)
    place_of_pair = torch.empty_like(place).scatter(0, order, place)
    return out[place_of_pair].float().view(t, k, -1).sum(1)
