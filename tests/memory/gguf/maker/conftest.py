"""A configuration smaller than the built-in one, and a reader of what was written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from memory.gguf.blocks import dequantize
from memory.gguf.maker import TINY_CONFIG


@dataclass
class Contents:
    """What the gguf package finds in a file: tensors decoded to float32, types, keys."""

    values: dict[str, np.ndarray[Any, Any]]
    types: dict[str, str]
    keys: dict[str, Any]


def read_gguf(*paths: Path) -> Contents:
    found = Contents({}, {}, {})
    for path in paths:
        reader = GGUFReader(path)
        for tensor in reader.tensors:
            assert tensor.name not in found.values
            raw = torch.from_numpy(np.array(tensor.data).view(np.uint8))
            value = dequantize(raw, tensor.tensor_type.name).numpy()
            assert np.isfinite(value).all(), tensor.name
            found.values[tensor.name] = value.reshape(tuple(tensor.shape.tolist())[::-1])
            found.types[tensor.name] = tensor.tensor_type.name
        found.keys.update({name: field.contents() for name, field in reader.fields.items()})
    return found


@pytest.fixture(scope="session")
def contents() -> Callable[..., Contents]:
    """Read one file or the shards of a set: contents(*paths)."""
    return read_gguf


@pytest.fixture
def config() -> dict[str, Any]:
    """Three layers with every mechanism, rows of 256 and more elements, 4 M weights."""
    outer = copy.deepcopy(TINY_CONFIG)
    outer["text_config"].update(
        vocab_size=300,
        num_hidden_layers=3,
        num_nextn_predict_layers=1,
        num_attention_heads=2,
        n_routed_experts=2,
        num_experts_per_tok=1,
        compress_ratios=[0, 2, 1, 0],
        kv_source_layer_ids=[1, 2],
        index_source_layer_ids=[1, 2],
        candidate_source_layer_id=2,
        index_n_heads=4,
        engram_layer_ids=[0, 2],
        engram_max_ngram_size=3,
        engram_vocab_size=50,
        engram_n_heads=1,
        engram_compressed_vocab_size=250,
        dspark_noise_token_id=299,
        dspark_target_layer_ids=[1, 2],
        dspark_n_routed_experts=3,
        dspark_num_experts_per_tok=2,
    )
    return outer
