"""The name table against the modules it fills and the files it reads."""

import random
from dataclasses import replace

import pytest
import torch

from engine.model.backbone import Backbone
from engine.model.draft import Draft
from engine.model.names import backbone_names, draft_names
from engine.model.precision import Precision
from memory.gguf import open_draft, open_model

FLOAT32 = Precision(compute=torch.float32, residual=torch.float32)


def assert_one_to_one(names, module):
    paths = [path for path, _ in module.named_parameters()]
    assert len(set(names.values())) == len(names), "no weight is filled twice"
    assert sorted(names.values()) == sorted(paths)


def assert_sizes(names, module, file):
    parameters = dict(module.named_parameters())
    for name, path in names.items():
        shape = file.tensors[name].shape
        assert torch.Size(shape).numel() == parameters[path].numel(), name


def test_golden_backbone(golden_gguf):
    with open_model(golden_gguf) as file:
        names, backbone = backbone_names(file.config), Backbone(file.config, FLOAT32, True)
        assert_one_to_one(names, backbone)
        assert_sizes(names, backbone, file)
        # the table of the n-gram memory is read by rows and is no weight
        assert set(file.tensors) - set(names) == {"per_layer_token_embd.weight"}


def test_golden_draft(golden_gguf):
    with open_draft(golden_gguf.with_name("golden-draft.gguf")) as file:
        names, draft = draft_names(file.config), Draft(file.config, FLOAT32, True)
        assert_one_to_one(names, draft)
        assert_sizes(names, draft, file)
        assert set(file.tensors) == set(names)
        without = replace(file.config, has_confidence=False)
    assert_one_to_one(draft_names(without), Draft(without, FLOAT32, True))
    assert set(names) - set(draft_names(without)) == {"conf_proj.weight"}


def random_layout(config, seed):
    """Another stack of layers: window only, then sources and readers of ratio 2, then of 1."""
    draw = random.Random(seed)
    plain, pairs, singles = draw.randint(0, 3), draw.randint(0, 4), draw.randint(0, 4)
    layers = plain + pairs + singles
    if layers == 0:
        plain = layers = 1
    ratios = (0,) * plain + (2,) * pairs + (1,) * singles
    starts = {at for at, count in ((plain, pairs), (plain + pairs, singles)) if count}
    compressed = range(plain, layers)
    sources = starts | {i for i in compressed if draw.random() < 0.3}
    choosers = sources | {i for i in compressed if draw.random() < 0.3}
    engram = None
    if draw.random() < 0.5:
        chosen = tuple(sorted(draw.sample(range(layers), k=draw.randint(1, min(2, layers)))))
        engram = replace(config.engram, layers=chosen)
    return replace(
        config,
        num_layers=layers,
        compress_ratios=ratios,
        kv_source_layers=tuple(sorted(sources)),
        index_source_layers=tuple(sorted(choosers)),
        candidate_source_layer=draw.choice([None, plain + pairs]) if singles else None,
        swiglu_limits=(1.0,) * layers,
        swiglu_limits_shared=(1.0,) * layers,
        engram=engram,
    )


@pytest.mark.parametrize("seed", range(20))
def test_other_layouts(small_config, seed):
    config = random_layout(small_config, seed)
    names = backbone_names(config)
    assert_one_to_one(names, Backbone(config, FLOAT32, True))
    gates = [name for name in names if name.endswith("attn_compressor_gate.weight")]
    pairs = [i for i in config.kv_source_layers if config.compress_ratios[i] == 2]
    assert gates == [f"blk.{i}.attn_compressor_gate.weight" for i in pairs]
    for name, path in names.items():  # a block's weights stay in their layer
        if name.startswith("blk."):
            assert path.split(".")[:2] == ["layers", name.split(".")[1]]
