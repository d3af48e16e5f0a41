"""Weights before they are filled."""

import pytest
import torch

from engine.model.backbone import Backbone
from engine.model.draft import Draft
from engine.model.parameters import empty
from engine.model.precision import Precision
from memory.gguf import open_draft, open_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_shape_type_and_no_gradient(shape, dtype):
    weight = empty(*shape, dtype=dtype)
    assert isinstance(weight, torch.nn.Parameter)
    assert (tuple(weight.shape), weight.dtype) == (shape, dtype)
    assert weight.is_meta and not weight.requires_grad


def test_default_type_is_float32():
    assert empty(1).dtype is torch.float32


def test_a_huge_weight_takes_no_memory():
    weight = empty(1 << 20, 1 << 20)  # 4 TiB, more than any machine that runs tests
    assert weight.numel() * weight.element_size() == 1 << 42
    assert weight.untyped_storage().device.type == "meta"


def test_all_weights_of_a_model_start_unfilled(golden_gguf):
    precision = Precision(compute=torch.bfloat16, residual=torch.bfloat16)
    with open_model(golden_gguf) as file:
        backbone = Backbone(file.config, precision, True)
    with open_draft(golden_gguf.with_name("golden-draft.gguf")) as file:
        draft = Draft(file.config, precision, True)
    parameters = [*backbone.parameters(), *draft.parameters()]
    assert len(parameters) > 200
    assert all(p.is_meta and not p.requires_grad for p in parameters)
    assert {p.dtype for p in parameters} == {torch.bfloat16, torch.float32}
