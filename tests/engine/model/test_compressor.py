"""Compressed rows and index keys against float64 loops over token pairs."""

import math

import pytest
import torch

from engine.model.compressor import Compressor
from ops.kv_quant import fake_quant_index, fake_quant_latent

PAIRS, SINGLES, SCRATCH, LENGTH = 1, 3, 3, 41


@pytest.fixture
def build(small_config, randomise):
    def make(layer, device, fake_quant=False):
        module = randomise(Compressor(small_config, layer, fake_quant), 20 + layer, device)
        if module.gate is not None:
            module.gate.mul_(3.0)  # weights far from one half
        return module

    return make


def draw(config, length, seed, device):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(length, config.hidden_size, generator=g).to(device)


def normalised(vector, weight):
    return weight * vector / vector.square().mean().sqrt()


def rotated(vector, position, config):
    out = vector.clone()
    for pair in range(config.rope_dim // 2):
        at = len(vector) - config.rope_dim + 2 * pair
        angle = position * config.compress_rope_theta ** (-2 * pair / config.rope_dim)
        turned = complex(out[at], out[at + 1]) * complex(math.cos(angle), math.sin(angle))
        out[at], out[at + 1] = turned.real, turned.imag
    return out


def slow_rows(module, x, config):
    """Latents and index keys of the complete groups of a sequence, float64."""
    w = {name: parameter.double().cpu() for name, parameter in module.named_parameters()}
    x = x.double().cpu()
    latents, keys = [], []
    for group in range(len(x) // module.ratio):
        tokens = x[group * module.ratio : (group + 1) * module.ratio]
        pooled = torch.zeros(config.head_dim, dtype=torch.float64)
        for channel in range(config.head_dim):
            value = [float(w["kv"][channel] @ token) for token in tokens]
            score = [float(w["gate"][channel] @ token) if "gate" in w else 0.0 for token in tokens]
            shares = [math.exp(s) for s in score]
            pooled[channel] = sum(v * s for v, s in zip(value, shares, strict=True)) / sum(shares)
        latent = normalised(pooled, w["norm"])
        key = normalised(w["index_k"] @ latent, w["index_k_norm"])  # of the unrotated latent
        latents.append(rotated(latent, group * module.ratio, config))
        keys.append(rotated(key, group * module.ratio, config))
    return torch.stack(latents), torch.stack(keys)


def assert_rows(state, module, slot, expected):
    for cache, rows in zip((state.latent, state.index_key), expected, strict=True):
        stored = cache[module.layer][slot, : len(rows)].double().cpu()
        torch.testing.assert_close(stored, rows, atol=3e-5, rtol=0)


@pytest.mark.parametrize("layer", [PAIRS, SINGLES])
@pytest.mark.parametrize(
    "splits",
    [(41,), (40, 1), (1, 40), (3, 4, 34), (5, 1, 1, 1, 33), (20, 21), (1,) * 41],
    ids=lambda splits: "-".join(map(str, splits[:5])),
)
def test_chunks_at_odd_and_even_starts(
    small_config, build, make_state, make_step, device, splits, layer
):
    module, state = build(layer, device), make_state(device)
    x, start = draw(small_config, LENGTH, 1, device), 0
    for length in splits:
        positions = [*range(start, start + length), 0, 0, 0]
        slots = [1] * length + [SCRATCH] * 3
        ctx = make_step(positions, slots, prefill=True, device=device)
        padding = draw(small_config, 3, 50 + start, device)
        module(torch.cat((x[start : start + length], padding)), ctx, state)
        start += length
    assert_rows(state, module, 1, slow_rows(module, x, small_config))
    beyond = state.latent[layer][1, LENGTH // module.ratio :]
    assert torch.count_nonzero(beyond) == 0, "an incomplete pair stores nothing"
    assert torch.count_nonzero(state.latent[layer][[0, 2]]) == 0


@pytest.mark.parametrize("accepted", [1, 2, 3, 5])
@pytest.mark.parametrize("layer", [PAIRS, SINGLES])
def test_rejected_rows_leave_no_trace(
    small_config, build, make_state, make_step, device, layer, accepted
):
    """Steps of 6 rows, of which only the first `accepted` are right; longer than the carry."""
    module, state = build(layer, device), make_state(device, decode_buckets=(6,))
    x, prompt = draw(small_config, 60, 2, device), 7
    ctx = make_step(range(prompt), 0, prefill=True, device=device)
    module(x[:prompt], ctx, state)
    for start in range(prompt, 54, accepted):
        rows = draw(small_config, 6, 100 + start, device)
        rows[:accepted] = x[start : start + accepted]
        ctx = make_step(range(start, start + 6), 0, prefill=False, device=device)
        module(rows, ctx, state)
        done = start + accepted
    expected = slow_rows(module, x[:done], small_config)
    assert done > 2 * 16 and len(expected[0]) == done // module.ratio
    assert_rows(state, module, 0, expected)


def test_prefill_goes_on_after_decode(small_config, build, make_state, make_step, device):
    module, state = build(PAIRS, device), make_state(device)
    x = draw(small_config, 30, 3, device)
    for start, end, prefill in ((0, 5, True), (5, 8, False), (8, 9, False), (9, 30, True)):
        ctx = make_step(range(start, end), 2, prefill=prefill, device=device)
        module(x[start:end], ctx, state)
    assert_rows(state, module, 2, slow_rows(module, x, small_config))


def test_sequences_of_one_decode_step_are_separate(
    small_config, build, make_state, make_step, device
):
    module, state = build(PAIRS, device), make_state(device)
    first, second = (draw(small_config, 8, seed, device) for seed in (4, 5))
    for slot, x, length in ((0, first, 5), (2, second, 6)):
        ctx = make_step(range(length), slot, prefill=True, device=device)
        module(x[:length], ctx, state)
    rows = torch.stack((first[5], second[6], first[6], second[7], first[7]))
    ctx = make_step([5, 6, 6, 7, 7], [0, 2, 0, 2, 0], prefill=False, device=device)
    module(rows, ctx, state)
    assert_rows(state, module, 0, slow_rows(module, first, small_config))
    assert_rows(state, module, 2, slow_rows(module, second, small_config))


def test_ratio_1_has_neither_gate_nor_carry(small_config, build, make_state):
    assert build(SINGLES, "cpu").gate is None
    assert build(PAIRS, "cpu").gate is not None
    state = make_state()
    assert set(state.carry) == {PAIRS} and set(state.latent) == {PAIRS, SINGLES}


@pytest.mark.parametrize("layer", [PAIRS, SINGLES])
def test_rounding_acts_on_what_is_stored(small_config, build, make_state, make_step, device, layer):
    x = draw(small_config, 12, 6, device)
    states = {}
    for fake_quant in (False, True):
        states[fake_quant] = make_state(device)
        ctx = make_step(range(12), 1, prefill=True, device=device)
        build(layer, device, fake_quant)(x, ctx, states[fake_quant])
    rows = 12 // small_config.compress_ratios[layer]
    for name, rounding in (("latent", fake_quant_latent), ("index_key", fake_quant_index)):
        exact, stored = (getattr(states[q], name)[layer][1, :rows] for q in (False, True))
        assert not torch.equal(exact, stored)
        assert torch.equal(rounding(exact), stored), "the key comes from the exact latent"


def test_pooled_value_is_rounded_before_the_norm(
    small_config, build, make_state, make_step, device
):
    module, state = build(PAIRS, device), make_state(device)
    x = draw(small_config, 20, 7, device).bfloat16()
    module(x, make_step(range(20), 0, prefill=True, device=device), state)
    pairs = x.float().view(10, 2, -1)
    share = torch.softmax(pairs @ module.gate.t(), 1)
    pooled = (share * (pairs @ module.kv.t())).sum(1).bfloat16().float()
    norm = pooled.square().mean(-1, keepdim=True).rsqrt()
    plain = small_config.head_dim - small_config.rope_dim  # channels without rotation
    expected = (module.norm * pooled * norm).bfloat16().float()[:, :plain]
    stored = state.latent[PAIRS][0, :10, :plain]
    torch.testing.assert_close(stored, expected, atol=0, rtol=2.0**-7)  # one step of bfloat16
    assert (stored == expected).float().mean() > 0.97  # about 0.8 without the first rounding
