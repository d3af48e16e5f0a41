"""What the fields of a step promise, held against the whole model."""

import dataclasses

import pytest
import torch

from engine.model.inputs import StepInputs, StepShape


def run(model, inputs, shape):
    with torch.inference_mode():
        collapsed, _ = model.backbone(inputs, model.state, shape)
        return model.backbone.logits(collapsed)


def pick(inputs, rows):
    """Rows of a step in another order or number."""
    index = torch.tensor(rows, device=inputs.positions.device)
    return StepInputs(
        inputs.token_ids[index],
        inputs.positions[index],
        inputs.slots[index],
        tuple(part[index] for part in inputs.engram),
    )


def joined(first, second):
    return StepInputs(
        *(torch.cat(pair) for pair in zip(first[:3], second[:3], strict=True)),
        tuple(torch.cat(pair) for pair in zip(first.engram, second.engram, strict=True)),
    )


def draw_tokens(seed, count=80):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(320, (count,), generator=g).tolist()


def test_shape_is_a_frozen_key():
    first, second = StepShape(True, 100, 16), StepShape(True, 100, 16)
    assert first == second and hash(first) == hash(second)
    assert len({first, StepShape(False, 100, 16), StepShape(True, 101, 16)}) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.prefill = False


@pytest.mark.parametrize("tile_rows", [1, 7, 39, 40, 41])
def test_tile_rows_change_no_result(golden_models, tile_rows):
    # Without cache rounding: random tokens may sit where a rounding step falls either way.
    model, tokens = golden_models(False), draw_tokens(1)
    inputs = model.inputs(tokens, 0, 40, 0)
    expected = run(model, inputs, StepShape(prefill=True, context_bound=40))
    shape = StepShape(prefill=True, context_bound=40, tile_rows=tile_rows)
    torch.testing.assert_close(run(model, inputs, shape), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("prefill", [True, False])
def test_context_bound_beyond_the_last_position_changes_no_result(golden_models, prefill):
    model, tokens = golden_models(False), draw_tokens(2)
    run(model, model.inputs(tokens, 0, 30, 1), StepShape(prefill=True, context_bound=30))
    inputs = model.inputs(tokens, 30, 35, 1)
    results = [
        run(model, inputs, StepShape(prefill=prefill, context_bound=bound))
        for bound in (35, 36, 64, model.state.max_model_len)
    ]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-4, rtol=0)


def test_padding_rows_may_hold_anything(golden_models):
    model, tokens = golden_models(False), draw_tokens(3)
    run(model, model.inputs(tokens, 0, 20, 1), StepShape(prefill=True, context_bound=20))
    inputs = model.inputs(tokens, 20, 22, 1)
    shape = StepShape(prefill=False, context_bound=model.state.max_model_len)
    expected = run(model, inputs, shape)
    before = [tensor[:-1].clone() for tensor in (*model.state.window, *model.state.latent.values())]
    garbage = model.inputs(draw_tokens(4), 50, 53, model.state.scratch_slot)
    padded = run(model, joined(inputs, garbage), shape)
    torch.testing.assert_close(padded[:2], expected, atol=1e-4, rtol=0)
    after = [tensor[:-1] for tensor in (*model.state.window, *model.state.latent.values())]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old, atol=1e-4, rtol=0)


def test_rows_of_a_decode_step_may_interleave(golden_models):
    model, first, second = golden_models(False), draw_tokens(5), draw_tokens(6)
    for slot, tokens, length in ((0, first, 25), (1, second, 4)):
        shape = StepShape(prefill=True, context_bound=length)
        run(model, model.inputs(tokens, 0, length, slot), shape)
    rows = joined(model.inputs(first, 25, 28, 0), model.inputs(second, 4, 7, 1))
    shape = StepShape(prefill=False, context_bound=model.state.max_model_len)
    expected = run(model, rows, shape)
    order = [3, 0, 4, 1, 2, 5]  # each sequence still ascending
    torch.testing.assert_close(
        run(model, pick(rows, order), shape), expected[order], atol=1e-4, rtol=0
    )
