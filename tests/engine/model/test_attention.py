"""Attention of one layer against float64 loops over queries, heads and entries."""

import math

import pytest
import torch

from engine.model.attention import Attention

LAYER, SOURCE, RATIO, SCRATCH = 2, 1, 2, 3


@pytest.fixture
def build(small_config, randomise):
    def make(device, fake_quant=False, source=SOURCE):
        ratio = RATIO if source is not None else 0
        module = Attention(small_config, LAYER, ratio, source, fake_quant, torch.float32)
        return randomise(module, 5, device)

    return make


def draw(config, length, seed, device):
    """Queries [T, A, C], window entries [T, C]; large enough for uneven weights."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(length, config.num_heads, config.head_dim, generator=g) * 2
    kv = torch.randn(length, config.head_dim, generator=g)
    return q.to(device), kv.to(device)


def draw_selection(positions, seed, device):
    """Up to 4 visible rows of ratio 2 for each position, ascending, -1 behind."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for position in positions:
        visible = (position + 1) // RATIO
        ids = sorted(torch.randperm(visible, generator=g)[:4].tolist())
        out.append(ids + [-1] * (4 - len(ids)))
    return torch.tensor(out, device=device)


def slow_attention(module, q, kv, selected, latent):
    """Position by position over a whole sequence: [T, A, C] float64."""
    q, kv, sinks = q.double().cpu(), kv.double().cpu(), module.sinks.double().cpu()
    latent = latent.double().cpu()
    out = torch.zeros_like(q)
    for p in range(q.shape[0]):
        entries = [kv[i] for i in range(max(0, p - module.config.window + 1), p + 1)]
        if selected is not None:
            entries += [latent[i] for i in selected[p].tolist() if i >= 0]
        for head in range(q.shape[1]):
            weights = [math.exp(float(q[p, head] @ e) / math.sqrt(len(e))) for e in entries]
            total = sum(weights) + math.exp(float(sinks[head]))
            for weight, entry in zip(weights, entries, strict=True):
                out[p, head] += weight / total * entry
    return out


def assert_near(value, expected, limit=2e-5):
    torch.testing.assert_close(value.double().cpu(), expected, atol=limit, rtol=0)


@pytest.mark.parametrize(
    ("splits", "tile"),
    [((37,), 64), ((37,), 5), ((1, 36), 16), ((20, 17), 1), ((3, 30, 4), 7), ((4, 5, 6, 22), 3)],
)
def test_chunks_of_a_prompt(small_config, build, make_state, make_step, device, splits, tile):
    module, state = build(device), make_state(device)
    q, kv = draw(small_config, 37, 1, device)
    state.latent[SOURCE][1] = draw(small_config, 48, 2, device)[1]
    state.window[LAYER].fill_(1e4)  # left by an earlier sequence, must not be seen
    selected = draw_selection(range(37), 3, device)
    out, start = [], 0
    for length in splits:
        part = slice(start, start + length)
        positions = [*range(start, start + length), 0, 0]  # two padding rows
        ctx = make_step(
            positions, [1] * length + [SCRATCH] * 2, prefill=True, device=device, tile_rows=tile
        )
        ctx.selected = torch.cat((selected[part], torch.full_like(selected[:2], -1)))
        padding_q, padding_kv = draw(small_config, 2, 9, device)
        rows = module(
            torch.cat((q[part], padding_q)), torch.cat((kv[part], padding_kv)), ctx, state
        )
        out.append(rows[:length])
        start += length
    expected = slow_attention(module, q, kv, selected, state.latent[SOURCE][1])
    assert_near(torch.cat(out), expected)


@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_decode_rows_around_the_ring(small_config, build, make_state, make_step, device, group):
    module, state = build(device), make_state(device, decode_buckets=(1, 6))
    ring_rows = state.window[LAYER].shape[1]
    length = 3 * ring_rows + 1
    q, kv = draw(small_config, length, 4, device)
    state.latent[SOURCE][2] = draw(small_config, 48, 5, device)[1]
    selected = draw_selection(range(length), 6, device)
    out = []
    for start in range(0, length, group):
        part = slice(start, min(start + group, length))
        if group > 1:  # six rows that are rejected; some of them stay in the ring
            wrong_q, wrong_kv = draw(small_config, 6, 1000 + start, device)
            ctx = make_step(range(start, start + 6), 2, prefill=False, device=device)
            module(wrong_q, wrong_kv, ctx, state)
        ctx = make_step(range(length)[part], 2, prefill=False, device=device)
        ctx.selected = selected[part]
        out.append(module(q[part], kv[part], ctx, state))
    expected = slow_attention(module, q, kv, selected, state.latent[SOURCE][2])
    assert_near(torch.cat(out), expected)


def test_sequences_of_one_decode_step_are_separate(
    small_config, build, make_state, make_step, device
):
    module, state = build(device), make_state(device)
    lengths, tails, prompts = {0: 12, 2: 3}, {0: 3, 2: 2}, {}
    for slot, length in lengths.items():
        prompts[slot] = draw(small_config, length, 20 + slot, device)
        state.latent[SOURCE][slot] = draw(small_config, 48, 30 + slot, device)[1]
        head = length - tails[slot]
        ctx = make_step(range(head), slot, prefill=True, device=device)
        q, kv = prompts[slot]
        module(q[:head], kv[:head], ctx, state)
    rows = [(0, 9), (2, 1), (0, 10), (2, 2), (0, 11)]
    positions = [position for _, position in rows]
    q, kv = (torch.stack([prompts[slot][i][p] for slot, p in rows]) for i in range(2))
    ctx = make_step(positions, [slot for slot, _ in rows], prefill=False, device=device)
    ctx.selected = draw_selection(positions, 7, device)
    out = module(q, kv, ctx, state)
    for row, (slot, position) in enumerate(rows):
        chosen = torch.full((lengths[slot], 4), -1)
        chosen[position] = ctx.selected[row].cpu()
        expected = slow_attention(module, *prompts[slot], chosen, state.latent[SOURCE][slot])
        assert_near(out[row], expected[position])


@pytest.mark.parametrize("prefill", [False, True])
def test_the_first_position_sees_itself_alone(
    small_config, build, make_state, make_step, device, prefill
):
    module, state = build(device, source=None), make_state(device)
    state.window[LAYER].fill_(1e4)
    state.latent[SOURCE].fill_(1e4)
    q, kv = draw(small_config, 1, 8, device)
    ctx = make_step([0], 0, prefill=prefill, device=device)
    ctx.selected = torch.zeros(1, 4, dtype=torch.int64, device=device)  # of another layer
    out = module(q, kv, ctx, state)[0].double().cpu()
    score = (q[0].double().cpu() @ kv[0].double().cpu()) * small_config.head_dim**-0.5
    share = torch.sigmoid(score - module.sinks.double().cpu())
    assert_near(out, share.unsqueeze(1) * kv[0].double().cpu())
    assert torch.equal(state.window[LAYER][0, 0], kv[0])


def rotated(vector, position, theta, rope_dim, direction=1):
    """Turn the last `rope_dim` channels by complex numbers, float64."""
    out = vector.double().clone()
    for pair in range(rope_dim // 2):
        at = len(vector) - rope_dim + 2 * pair
        angle = direction * position * theta ** (-2 * pair / rope_dim)
        turned = complex(out[at], out[at + 1]) * complex(math.cos(angle), math.sin(angle))
        out[at], out[at + 1] = turned.real, turned.imag
    return out


def normalised(vector, weight):
    vector = vector.double()
    return weight.double() * vector / vector.square().mean().sqrt()


def test_projections_in_float64(small_config, build, make_step, device):
    module, config = build(device), small_config
    g = torch.Generator().manual_seed(10)
    positions = [0, 1, 7, 60]
    x = torch.randn(4, config.hidden_size, generator=g)
    ctx = make_step(positions, 0, prefill=False, device=device)
    latent, q = module.query(x.to(device), ctx.compress_rope)
    kv = module.key_value(x.to(device), ctx.compress_rope)
    w = {name: parameter.double().cpu() for name, parameter in module.named_parameters()}
    theta, rope_dim = config.compress_rope_theta, config.rope_dim
    for row, position in enumerate(positions):
        expected = normalised(w["q_a"] @ x[row].double(), w["q_a_norm"])
        assert_near(latent[row], expected)
        for head in range(config.num_heads):
            part = slice(head * config.head_dim, (head + 1) * config.head_dim)
            query = rotated(w["q_b"][part] @ expected, position, theta, rope_dim)
            assert_near(q[row, head], query)
        key = normalised(w["kv"] @ x[row].double(), w["kv_norm"])
        assert_near(kv[row], rotated(key, position, theta, rope_dim))


def test_output_is_rotated_back_and_projected_group_by_group(
    small_config, build, make_step, device
):
    module, config = build(device), small_config
    g = torch.Generator().manual_seed(11)
    positions = [0, 3, 50]
    o = torch.randn(3, config.num_heads, config.head_dim, generator=g)
    ctx = make_step(positions, 0, prefill=False, device=device)
    out = module.output(o.to(device), ctx.window_rope)
    o_a, o_b = module.o_a.double().cpu(), module.o_b.double().cpu()
    heads_of_group = config.num_heads // config.o_groups
    for row, position in enumerate(positions):
        back = [rotated(head, position, config.rope_theta, config.rope_dim, -1) for head in o[row]]
        ranks = []
        for group in range(config.o_groups):
            joined = torch.cat(back[group * heads_of_group : (group + 1) * heads_of_group])
            ranks.append(o_a[group] @ joined)
        assert_near(out[row], o_b @ torch.cat(ranks))


def test_keys_are_rounded_as_stored(small_config, build, make_step, device):
    exact, rounding = build(device), build(device, fake_quant=True)
    x = torch.randn(6, small_config.hidden_size, generator=torch.Generator().manual_seed(12))
    ctx = make_step(range(6), 0, prefill=True, device=device)
    before = exact.key_value(x.to(device), ctx.window_rope).cpu()
    after = rounding.key_value(x.to(device), ctx.window_rope).cpu()
    assert not torch.equal(before, after)
    # three mantissa bits: half a step is at most 1/16 of a normal value
    top = before.abs().amax(-1, keepdim=True)
    assert ((after - before).abs() <= before.abs() / 16 + top * 2.0**-16).all()
    assert torch.equal(after, after.bfloat16().float())
