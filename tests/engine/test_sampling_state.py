from __future__ import annotations

import torch

from engine.request import SamplingParams
from engine.sampling_state import SamplingInputs, SamplingState


def test_set_row_writes_every_field() -> None:
    inputs = SamplingInputs.allocate(3, spare_slot=7)
    params = SamplingParams(
        max_tokens=9,
        temperature=0.75,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        repetition_penalty=1.1,
        min_tokens=4,
    )
    inputs.set_row(1, params, slot=2, uniform=0.625, num_generated=3)
    fields = {name: value[1].item() for name, value in vars(inputs).items() if name != "arena"}
    assert fields == {
        "temperature": 0.75,
        "top_p": 0.9,
        "min_p": 0.05,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.25,
        "repetition_penalty": 1.1,
        "uniform": 0.625,
        "top_k": 40,
        "slot": 2,
        "stop_allowed": 0,
    }
    inputs.set_row(1, params, slot=2, uniform=0.0, num_generated=4)
    assert inputs.stop_allowed[1] == 1
    assert inputs.slot.tolist() == [7, 2, 7]
    assert inputs.temperature.tolist() == [0.0, 0.75, 0.0]
    assert inputs.repetition_penalty.tolist() == [1.0, 1.1, 1.0]


def test_huge_top_k_keeps_all() -> None:
    inputs = SamplingInputs.allocate(1)
    params = SamplingParams(max_tokens=1, top_k=2**70)
    inputs.set_row(0, params, slot=0, uniform=0.0, num_generated=0)
    assert inputs.top_k[0] == 2**63 - 1


def test_rows_and_fields_are_views_of_the_arena() -> None:
    inputs = SamplingInputs.allocate(4)
    part = inputs.rows(2)
    params = SamplingParams(max_tokens=1, temperature=0.5)
    part.set_row(1, params, slot=3, uniform=0.5, num_generated=0)
    assert inputs.temperature.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert inputs.slot.tolist() == [0, 3, 0, 0]
    other = SamplingInputs.allocate(4)
    address = other.temperature.data_ptr()
    other.copy_from(inputs)
    assert torch.equal(other.arena, inputs.arena)
    assert other.temperature.data_ptr() == address and other.temperature[1] == 0.5


def test_clear_row_restores_a_padded_row() -> None:
    inputs = SamplingInputs.allocate(2, spare_slot=5)
    fresh = inputs.arena.clone()
    params = SamplingParams(max_tokens=1, min_p=0.5, top_k=3, min_tokens=1)
    inputs.set_row(0, params, slot=1, uniform=0.3, num_generated=0)
    assert not torch.equal(inputs.arena, fresh)
    inputs.clear_row(0, 5)
    assert torch.equal(inputs.arena, fresh)


def test_start_replaces_what_the_slot_held() -> None:
    state = SamplingState(2, 6, suppressed_ids=[5])
    addresses = {name: tensor.data_ptr() for name, tensor in vars(state).items()}
    state.start(
        1,
        SamplingParams(max_tokens=1, logit_bias={0: 2.5, 4: -100}),
        prompt_ids=[1, 1, 3],
        stop_ids={2},
    )
    state.output_counts[1, 3] = 2
    assert state.bias[1].tolist() == [2.5, 0, 0, 0, -100, 0]
    assert state.prompt_mask[1].nonzero().flatten().tolist() == [1, 3]
    assert state.stop_mask[1].nonzero().flatten().tolist() == [2]
    assert state.suppressed.nonzero().flatten().tolist() == [5]
    state.start(1, SamplingParams(max_tokens=1), prompt_ids=[0], stop_ids=())
    assert not state.bias.any() and not state.stop_mask.any() and not state.output_counts.any()
    assert state.prompt_mask[1].nonzero().flatten().tolist() == [0]
    assert not state.prompt_mask[0].any()
    assert addresses == {name: tensor.data_ptr() for name, tensor in vars(state).items()}
