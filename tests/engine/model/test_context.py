"""Rings, visibility and rotation tables against dictionaries and loops."""

import math

import pytest
import torch

from engine.model.context import decode_window, previous_window, write_ring, write_rows

SLOTS, RING, WIDTH, SCRATCH = 3, 7, 4, 3


def new_ring(device):
    return torch.full((SLOTS + 1, RING, WIDTH), -1.0, device=device)


def values_for(count, seed, device):
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)).to(device)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("length", [1, RING - 1, RING, RING + 1, 3 * RING + 2])
def test_prefill_chunk_leaves_its_last_rows(make_step, device, length, padding):
    ring, start, slot = new_ring(device), 11, 1
    values = values_for(length + padding, length, device)
    # padding rows stand at position 0; row 0 of the slot must not be hit by them
    positions = [*range(start, start + length), *[0] * padding]
    ctx = make_step(positions, [slot] * length + [SCRATCH] * padding, prefill=True, device=device)
    write_ring(ring, ctx, values)
    expected = new_ring(device)
    for row in range(length):  # in order: the last writer of a ring row wins
        expected[slot, (start + row) % RING] = values[row]
    assert torch.equal(ring[:SLOTS], expected[:SLOTS])
    sent_away = length + padding > min(length, RING)
    assert bool((ring[SCRATCH] != -1).any()) == sent_away
    for entry in ring[SCRATCH][(ring[SCRATCH] != -1).any(-1)]:
        assert (values == entry).all(-1).any(), "the scratch slot holds whole rows"


def test_decode_rows_of_several_sequences(make_step, device):
    ring = new_ring(device)
    places = [(2, 5), (0, 6), (0, 7), (0, 8), (2, 6), (1, 0)]
    values = values_for(len(places), 3, device)
    ctx = make_step([p for _, p in places], [s for s, _ in places], prefill=False, device=device)
    write_ring(ring, ctx, values)
    expected = new_ring(device)
    for (slot, position), value in zip(places, values, strict=True):
        expected[slot, position % RING] = value
    assert torch.equal(ring, expected)


def test_write_rows_casts_to_the_cache_type(device):
    cache = torch.zeros(2, 5, WIDTH, dtype=torch.bfloat16, device=device)
    values = values_for(3, 4, device)
    slots, rows = torch.tensor([[1, 0, 1], [4, 2, 0]], device=device)
    write_rows(cache, slots, rows, values)
    assert torch.equal(cache[slots, rows], values.bfloat16())
    assert torch.count_nonzero(cache.abs().sum(-1)) == 3


def filled_ring(make_step, device, lengths):
    """Write positions 0 ... length-1 of each slot; also return (slot, position) -> value."""
    ring, written = new_ring(device), {}
    for slot, length in enumerate(lengths):
        for position in range(length):
            value = values_for(1, 100 * slot + position, device)
            ctx = make_step([position], slot, prefill=False, device=device)
            write_ring(ring, ctx, value)
            written[slot, position] = value[0]
    return ring, written


def test_decode_window_is_newest_first_and_masked_before_the_start(make_step, device):
    ring, written = filled_ring(make_step, device, [23, 2, 8])
    window = 5
    slots, positions = [0, 1, 1, 2, 0], [22, 0, 1, 7, 21]
    entries, mask = decode_window(
        ring, torch.tensor(slots, device=device), torch.tensor(positions, device=device), window
    )
    assert entries.shape == (5, window, WIDTH)
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        for back in range(window):
            seen = position - back >= 0
            assert bool(mask[row, back]) == seen
            if seen:
                assert torch.equal(entries[row, back], written[slot, position - back])


@pytest.mark.parametrize("first", [3, 6, 7, 20])
def test_previous_window_is_oldest_first(make_step, device, first):
    ring, written = filled_ring(make_step, device, [0, first])
    window = 6
    ctx = make_step([first, first + 1], 1, prefill=True, device=device)
    previous = previous_window(ring, ctx, window)
    assert previous.shape == (window - 1, WIDTH)
    for index in range(window - 1):
        position = first - (window - 1) + index
        if position >= 0:
            assert torch.equal(previous[index], written[1, position])


@pytest.mark.parametrize("ratio", [1, 2])
def test_num_visible_counts_complete_rows(make_step, device, ratio):
    positions = [0, 1, 2, 3, 10, 11, 94]
    ctx = make_step(positions, 0, prefill=False, device=device)
    expected = [
        sum(1 for g in range(100) if all(g * ratio + i <= p for i in range(ratio)))
        for p in positions
    ]
    assert ctx.num_visible(ratio).tolist() == expected


def test_rotation_tables(make_step, small_config, device):
    positions = [0, 1, 2, 3, 8, 95]
    ctx = make_step(positions, 0, prefill=False, device=device)
    for (cos, sin), theta, starts in (
        (ctx.window_rope, small_config.rope_theta, positions),
        (ctx.compress_rope, small_config.compress_rope_theta, positions),
        (ctx.pair_rope, small_config.compress_rope_theta, [p - p % 2 for p in positions]),
    ):
        for row, position in enumerate(starts):
            for pair in range(small_config.rope_dim // 2):
                angle = position * theta ** (-2 * pair / small_config.rope_dim)
                assert math.isclose(float(cos[row, pair]), math.cos(angle), abs_tol=2e-5)
                assert math.isclose(float(sin[row, pair]), math.sin(angle), abs_tol=2e-5)
    assert ctx.rope(0) is ctx.window_rope
    assert ctx.rope(1) is ctx.compress_rope and ctx.rope(2) is ctx.compress_rope


def test_report_reaches_the_probe(make_step):
    heard = []
    ctx = make_step([0], 0, prefill=False, probe=lambda *values: heard.append(values))
    value = torch.ones(1)
    ctx.report("x", 4, value)
    assert heard == [("x", 4, value)]
    make_step([0], 0, prefill=False).report("x", 4, value)
    assert len(heard) == 1
