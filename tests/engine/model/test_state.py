"""Sizes of the cache from the documented shapes, and what one slot shares with others: nothing."""

from dataclasses import replace

import pytest
import torch

from engine.config import EngineConfig
from engine.model.precision import Precision
from engine.model.state import allocate_state, resolve_max_model_len
from memory.gguf import open_draft


@pytest.fixture
def draft_config(golden_gguf):
    with open_draft(golden_gguf.with_name("golden-draft.gguf")) as file:
        return file.config


def allocate(model, draft, dtype=torch.float32, **settings):
    precision = Precision(compute=dtype, residual=torch.float32)
    return allocate_state(model, draft, EngineConfig(**settings), precision, torch.device("cpu"))


def all_tensors(state):
    groups = (state.window, state.latent.values(), state.index_key.values())
    yield from (tensor for group in groups for tensor in group)
    yield from (*state.carry.values(), *state.draft_window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("seqs", "length", "buckets"), [(1, 64, (1,)), (3, 33, (1, 2, 9)), (5, 200, (4, 16))]
)
def test_bytes_follow_from_the_shapes(small_config, draft_config, seqs, length, buckets, dtype):
    state = allocate(
        small_config,
        draft_config,
        dtype,
        max_num_seqs=seqs,
        max_model_len=length,
        decode_buckets=buckets,
    )
    window, head, index = small_config.window, small_config.head_dim, small_config.index_head_dim
    most = max(buckets)
    ring = max(2 * window, window + most)
    draft_ring = max(2 * draft_config.window, draft_config.window + most)
    numbers = small_config.num_layers * ring * head
    numbers += draft_config.num_layers * draft_ring * draft_config.head_dim
    for layer in small_config.kv_source_layers:
        ratio = small_config.compress_ratios[layer]
        numbers += (length + ratio - 1) // ratio * (head + index)
    pending = 2 * max(16, 2 * most) * head  # one source of ratio 2: float32 values and scores
    slots = seqs + 1
    assert state.num_bytes() == slots * (numbers * dtype.itemsize + pending * 4)
    assert state.num_bytes() == sum(t.untyped_storage().nbytes() for t in all_tensors(state))
    assert (state.num_slots, state.scratch_slot, state.max_step_rows) == (seqs, seqs, most)
    assert all(tensor.shape[0] == slots for tensor in all_tensors(state))
    assert all(torch.count_nonzero(tensor) == 0 for tensor in all_tensors(state))


@pytest.mark.parametrize("most", [1, 4, 5, 6, 40])
def test_rings_hold_a_step_and_all_that_its_oldest_row_sees(small_config, draft_config, most):
    state = allocate(small_config, draft_config, decode_buckets=(most,))
    for rings, window in (
        (state.window, small_config.window),
        (state.draft_window, draft_config.window),
    ):
        for ring in rings:
            # positions p-W+1 ... p+most-1 all need a row of their own
            touched = {position % ring.shape[1] for position in range(window + most - 1)}
            assert len(touched) == window + most - 1
    for carry in state.carry.values():
        assert carry.shape[1] > most, "the partner of the oldest row survives the step"


@pytest.mark.parametrize(
    ("setting", "context", "expected"),
    [(0, 1 << 20, 8192), (0, 4096, 4096), (100, 4096, 100), (5000, 4096, 4096), (9000, 9000, 9000)],
)
def test_longest_sequence(small_config, setting, context, expected):
    model = replace(small_config, context_length=context)
    assert resolve_max_model_len(model, EngineConfig(max_model_len=setting)) == expected
    state = allocate(model, None, max_model_len=setting, max_num_seqs=1)
    assert state.max_model_len == expected
    assert state.latent[1].shape[1] == -(-expected // 2)
    assert state.index_key[3].shape[1] == expected


def test_without_a_draft_there_is_no_draft_window(small_config, draft_config):
    assert allocate(small_config, None).draft_window == []
    assert len(allocate(small_config, draft_config).draft_window) == draft_config.num_layers


def test_carry_is_float32_and_for_ratio_2_alone(small_config):
    state = allocate(small_config, None, torch.bfloat16)
    assert set(state.carry) == {1} and state.carry[1].dtype == torch.float32
    assert state.latent[1].dtype == state.window[0].dtype == torch.bfloat16
    without = replace(small_config, compress_ratios=(0, 1, 1, 1, 1))
    assert allocate(without, None).carry == {}


def test_no_two_tensors_share_memory(small_config, draft_config):
    state = allocate(small_config, draft_config)
    tensors = list(all_tensors(state))
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
    assert len(tensors) == 5 + 2 + 2 + 1 + draft_config.num_layers


@pytest.mark.parametrize("slot", [0, 2, 3])
def test_clear_slot_clears_one_slot(small_config, draft_config, slot):
    state = allocate(small_config, draft_config, max_num_seqs=3)
    g = torch.Generator().manual_seed(slot)
    for tensor in all_tensors(state):
        tensor.copy_(torch.rand(tensor.shape, generator=g) + 1)
    before = [tensor.clone() for tensor in all_tensors(state)]
    state.clear_slot(slot)
    others = [number for number in range(4) if number != slot]
    for tensor, old in zip(all_tensors(state), before, strict=True):
        assert torch.count_nonzero(tensor[slot]) == 0
        assert torch.equal(tensor[others], old[others])
