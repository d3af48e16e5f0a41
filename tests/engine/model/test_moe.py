"""Router, routed and shared experts of one layer against a float64 loop."""

import math
from dataclasses import replace

import pytest
import torch

from engine.model.moe import MixtureOfExperts


@pytest.fixture
def build(small_config, randomise):
    def make(layer, device="cpu", dtype=torch.float32, **changes):
        module = MixtureOfExperts(replace(small_config, **changes), layer, dtype)
        return randomise(module, 60 + layer, device)

    return make


def draw(config, length, seed, device, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(length, config.hidden_size, generator=g) * scale).to(device)


def slow_expert(x, gate, up, down, limit, weight):
    inner = []
    for g, u in zip((gate @ x).tolist(), (up @ x).tolist(), strict=True):
        if limit:
            g, u = min(g, limit), max(-limit, min(u, limit))
        inner.append(weight * g / (1 + math.exp(-g)) * u)
    return down @ torch.tensor(inner, dtype=torch.float64)


def slow_moe(module, x, limit, limit_shared):
    """Return the output [T, D] float64 and, per row, a mapping expert -> weight."""
    config, x = module.config, x.double().cpu()
    w = {name: parameter.double().cpu() for name, parameter in module.named_parameters()}
    out, choices = torch.zeros_like(x), []
    for row, token in enumerate(x):
        scores = [math.sqrt(math.log1p(math.exp(z))) for z in (w["router"] @ token).tolist()]
        biased = [s + float(b) for s, b in zip(scores, w["router_bias"], strict=True)]
        chosen = sorted(range(len(scores)), key=lambda e: -biased[e])[: config.num_experts_used]
        total = sum(scores[e] for e in chosen) if config.expert_weights_norm else 1.0
        weights = {e: scores[e] / total * config.expert_weights_scale for e in chosen}
        for expert, weight in weights.items():
            matrices = (w[name][expert] for name in ("gate", "up", "down"))
            out[row] += slow_expert(token, *matrices, limit, weight)
        matrices = (w[name] for name in ("shared_gate", "shared_up", "shared_down"))
        out[row] += slow_expert(token, *matrices, limit_shared, 1.0)
        choices.append(weights)
    return out, choices


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 45])
@pytest.mark.parametrize("layer", [0, 2, 4])
def test_sum_of_routed_and_shared_experts(
    small_config, build, make_step, device, layer, rows, normalise
):
    module = build(layer, device, expert_weights_norm=normalise)
    x, heard = draw(small_config, rows, layer, device), {}
    ctx = make_step(
        range(rows), 0, prefill=True, device=device, probe=lambda n, layer, v: heard.update({n: v})
    )
    out = module(x, ctx)
    limits = small_config.swiglu_limits[layer], small_config.swiglu_limits_shared[layer]
    expected, choices = slow_moe(module, x, *limits)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double().cpu(), expected, atol=2e-5, rtol=0)
    for ids, weights, choice in zip(
        heard["expert_ids"].tolist(), heard["expert_weights"].tolist(), choices, strict=True
    ):
        assert dict(zip(ids, weights, strict=True)) == pytest.approx(choice, abs=1e-5)


@pytest.mark.parametrize("which", [0, 1])
def test_both_clamps_act(small_config, build, make_step, which):
    """Without either clamp of the layer the output is another one."""
    module, x = build(3), draw(small_config, 6, 7, "cpu")
    limits = [small_config.swiglu_limits[3], small_config.swiglu_limits_shared[3]]
    out = module(x, make_step(range(6), 0, prefill=True))
    limits[which] = 0.0
    unclamped, _ = slow_moe(module, x, *limits)
    assert ((out - unclamped).abs().amax(-1) > 1e-2).all()


def test_rows_do_not_depend_on_their_neighbours(small_config, build, make_step, device):
    module, x = build(1, device), draw(small_config, 40, 8, device)
    together = module(x, make_step(range(40), 0, prefill=True, device=device))
    for row in (0, 17, 39):
        ctx = make_step([row], 0, prefill=False, device=device)
        alone = module(x[row : row + 1], ctx)
        torch.testing.assert_close(alone[0], together[row], atol=2e-5, rtol=0)


def test_bfloat16_weights_give_float32(small_config, build, make_step, device):
    module = build(2, device, torch.bfloat16)
    x = draw(small_config, 5, 9, device, 1.0).bfloat16()
    out = module(x, make_step(range(5), 0, prefill=True, device=device))
    limits = small_config.swiglu_limits[2], small_config.swiglu_limits_shared[2]
    expected, _ = slow_moe(module, x, *limits)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double().cpu(), expected, atol=3e-2, rtol=0)
    assert torch.isfinite(out).all() and expected.abs().max() > 0.3
