"""Selection of compressed rows against a full sort of float64 scores."""

from dataclasses import replace

import pytest
import torch

from engine.model.indexer import Indexer
from ops.kv_quant import fake_quant_index
from ops.rope import apply_rope

PAIRS, CANDIDATES, REINDEX, SCRATCH = 1, 3, 4, 3
CLEAR = 1e-5  # scores closer than this may be ordered by rounding


@pytest.fixture
def build(small_config, randomise):
    def make(layer, device, fake_quant=False, config=small_config):
        return randomise(Indexer(config, layer, fake_quant, torch.float32), 40 + layer, device)

    return make


def draw(config, length, seed, device):
    """Attention inputs [T, D] and query bottlenecks [T, q_lora_rank]."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(length, config.hidden_size, generator=g)
    return x.to(device), torch.randn(length, config.q_lora_rank, generator=g).to(device)


def draw_keys(state, layer, slot, seed):
    cache = state.index_key[layer]
    g = torch.Generator().manual_seed(seed)
    cache[slot] = torch.randn(cache.shape[1:], generator=g).to(cache)


def slow_scores(module, x, latent, ctx, keys):
    """Scores [T, N] float64, head by head, with signed weights; -inf where not visible."""
    config = module.config
    queries = torch.nn.functional.linear(latent, module.q_b)
    queries = queries.unflatten(-1, (config.index_num_heads, config.index_head_dim))
    cos, sin = ctx.compress_rope
    queries = apply_rope(queries, cos.unsqueeze(-2), sin.unsqueeze(-2))
    if module.fake_quant:
        queries = fake_quant_index(queries)
    queries, keys, x = (value.double().cpu() for value in (queries, keys, x))
    weights = x @ module.weights_proj.double().cpu().t()
    weights /= (config.index_head_dim * config.index_num_heads) ** 0.5
    scores = torch.zeros(len(x), len(keys), dtype=torch.float64)
    for head in range(config.index_num_heads):
        scores += weights[:, head : head + 1] * (queries[:, head] @ keys.t()).clamp(min=0)
    for row, position in enumerate(ctx.positions.tolist()):
        scores[row, (position + 1) // module.ratio :] = -torch.inf
    return scores


def slow_choice(scores, k):
    """Ids of a query's best rows, ascending, equals by number; None where rounding could decide."""
    values = scores.tolist()
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))
    least = values[ranked[min(k, len(ranked)) - 1]]
    if any(0 < abs(value - least) < CLEAR for value in values):
        return None
    return sorted(i for i in ranked[:k] if values[i] > -torch.inf)


def assert_selected(selected, scores, k):
    assert selected.shape == (len(scores), min(k, scores.shape[1]))
    compared = 0
    for row, found in zip(scores, selected.tolist(), strict=True):
        expected = slow_choice(row, k)
        if expected is not None:
            assert found == expected + [-1] * (len(found) - len(expected))
            compared += 1
    assert compared >= 0.9 * len(scores)


@pytest.mark.parametrize("fake_quant", [False, True])
@pytest.mark.parametrize("layer", [PAIRS, CANDIDATES])
def test_selection_is_a_full_sort(build, make_state, make_step, device, layer, fake_quant):
    module, state = build(layer, device, fake_quant), make_state(device)
    draw_keys(state, layer, 1, 2)
    x, latent = draw(module.config, 90, 3, device)
    ctx = make_step(range(90), 1, prefill=True, device=device)
    module(x, latent, ctx, state)
    scores = slow_scores(module, x, latent, ctx, state.index_key[layer][1])
    assert (scores[torch.isfinite(scores)] < 0).any(), "weights are signed"
    assert_selected(ctx.selected, scores, module.config.index_top_k)
    assert ctx.selected[0].tolist().count(-1) >= 6 and (ctx.selected[-1] >= 0).all()


@pytest.mark.parametrize("layer", [PAIRS, CANDIDATES])
def test_decode_rows_of_two_sequences(build, make_state, make_step, device, layer):
    module, state = build(layer, device), make_state(device)
    rows = [(0, 41), (2, 30), (0, 42), (SCRATCH, 0), (2, 31), (2, 32), (2, 33), (0, 43)]
    for slot in (0, 2, SCRATCH):
        draw_keys(state, layer, slot, 10 + slot)
    x, latent = draw(module.config, len(rows), 4, device)
    positions, slots = [p for _, p in rows], [s for s, _ in rows]
    ctx = make_step(positions, slots, prefill=False, device=device)
    module(x, latent, ctx, state)
    for row, slot in enumerate(slots):
        one = slow_scores(module, x, latent, ctx, state.index_key[layer][slot])[row : row + 1]
        assert_selected(ctx.selected[row : row + 1], one, module.config.index_top_k)


def slow_candidates(config, scores):
    """Rows of the kept blocks of each query, [T, N] bool."""
    size = config.candidate_block_size
    keep = torch.zeros(scores.shape, dtype=torch.bool)
    for row, line in enumerate(scores):
        visible = int(torch.isfinite(line).sum())
        newest = (visible - 1) // size
        blocks = {b: float(line[b * size : (b + 1) * size].max()) for b in range(newest)}
        blocks[newest] = float("inf")  # always kept
        best = sorted(blocks, key=lambda b: (-blocks[b], b))[: config.candidate_top_k_blocks]
        for block in best:
            keep[row, block * size : (block + 1) * size] = True
    return keep


def test_candidate_source_chooses_from_all_rows(build, make_state, make_step, device):
    module, state = build(CANDIDATES, device), make_state(device)
    draw_keys(state, CANDIDATES, 0, 5)
    x, latent = draw(module.config, 80, 6, device)
    ctx = make_step(range(80), 0, prefill=True, device=device)
    module(x, latent, ctx, state)
    scores = slow_scores(module, x, latent, ctx, state.index_key[CANDIDATES][0])
    candidates = ctx.candidates.cpu()
    assert torch.equal(candidates, slow_candidates(module.config, scores))
    assert_selected(ctx.selected, scores, module.config.index_top_k)
    chosen = ctx.selected[-1].cpu()
    assert not candidates[-1][chosen].all(), "its own choice goes beyond the candidates"


def test_later_sources_stay_inside_the_candidates(build, make_state, make_step, device):
    first, second = build(CANDIDATES, device), build(REINDEX, device)
    assert second.source == CANDIDATES, "it reads its KV source's keys"
    state = make_state(device)
    draw_keys(state, CANDIDATES, 0, 7)
    x, latent = draw(first.config, 80, 8, device)
    ctx = make_step(range(80), 0, prefill=True, device=device)
    first(x, latent, ctx, state)
    x, latent = draw(first.config, 80, 9, device)
    second(x, latent, ctx, state)
    free = slow_scores(second, x, latent, ctx, state.index_key[CANDIDATES][0])
    candidates = ctx.candidates.cpu()
    assert_selected(ctx.selected, torch.where(candidates, free, -torch.inf), 7)
    assert slow_choice(free[-1], 7) != ctx.selected[-1].tolist(), "the filter acts"
    for row, ids in enumerate(ctx.selected.cpu()):
        assert candidates[row][ids[ids >= 0]].all()


def test_rows_before_the_candidate_source_are_not_filtered(build, make_state, make_step):
    module, state = build(PAIRS, "cpu"), make_state()
    draw_keys(state, PAIRS, 0, 11)
    x, latent = draw(module.config, 60, 12, "cpu")
    ctx = make_step(range(60), 0, prefill=True)
    ctx.candidates = torch.zeros(60, 48, dtype=torch.bool)
    module(x, latent, ctx, state)
    scores = slow_scores(module, x, latent, ctx, state.index_key[PAIRS][0])
    assert_selected(ctx.selected, scores, module.config.index_top_k)


@pytest.mark.parametrize(("layer", "bound"), [(PAIRS, 13), (PAIRS, 40), (CANDIDATES, 13)])
def test_bound_changes_width_only(build, make_state, make_step, device, layer, bound):
    module, state = build(layer, device), make_state(device)
    draw_keys(state, layer, 0, 13)
    x, latent = draw(module.config, 4, 14, device)
    chosen = []
    for limit in (bound, 96):
        ctx = make_step(range(bound - 4, bound), 0, prefill=True, device=device, bound=limit)
        module(x, latent, ctx, state)
        chosen.append([[i for i in row if i >= 0] for row in ctx.selected.tolist()])
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("prefill", [True, False])
def test_a_single_row(build, make_state, make_step, device, prefill):
    module, state = build(PAIRS, device), make_state(device)
    draw_keys(state, PAIRS, 2, 17)
    x, latent = draw(module.config, 1, 18, device)
    ctx = make_step([70], 2, prefill=prefill, device=device)
    module(x, latent, ctx, state)
    scores = slow_scores(module, x, latent, ctx, state.index_key[PAIRS][2])
    assert_selected(ctx.selected, scores, module.config.index_top_k)


def test_tiles_give_what_pieces_give(small_config, build, make_state, make_step):
    """A chunk whose products exceed one tile of 64 MiB equals pieces that fit into one."""
    config = replace(small_config, index_num_heads=16, context_length=4096, index_top_k=40)
    config = replace(config, candidate_top_k_blocks=60)
    first, second = build(CANDIDATES, "cpu", config=config), build(REINDEX, "cpu", config=config)
    state = make_state(config=config, max_model_len=4096, max_num_seqs=1)
    draw_keys(state, CANDIDATES, 0, 15)
    rows, start = 300, 3700
    assert 4 * config.index_num_heads * 4096 * rows > 64 * 2**20

    def run(begin, end):
        x, latent = (value[begin:end] for value in draw(config, rows, 16, "cpu"))
        positions = range(start + begin, start + end)
        ctx = make_step(positions, 0, prefill=True, bound=4096)
        first(x, latent, ctx, state)
        own = ctx.selected
        second(x, latent, ctx, state)
        return own, ctx.candidates, ctx.selected

    whole = run(0, rows)
    pieces = zip(*(run(at, at + 100) for at in range(0, rows, 100)), strict=True)
    assert [value.shape for value in whole] == [(rows, 40), (rows, 4096), (rows, 40)]
    # a matrix product may round differently with its row count, so near ties may differ
    for value, parts in zip(whole, pieces, strict=True):
        assert (value == torch.cat(parts)).all(1).float().mean() > 0.97
