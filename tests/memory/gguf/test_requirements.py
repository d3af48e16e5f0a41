from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.model_config import DraftConfig, EngramConfig, ModelConfig
from memory.gguf import open_model
from memory.gguf.requirements import (
    compact_names,
    draft_requirements,
    model_requirements,
    same_layout,
)

BLOCK: dict[str, Any] = {
    "hidden_size": 5120,
    "vocab_size": 129280,
    "context_length": 1048576,
    "num_heads": 64,
    "head_dim": 512,
    "rope_dim": 64,
    "q_lora_rank": 1280,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "window": 128,
    "norm_eps": 1e-20,
    "rope_theta": 10000.0,
    "num_shared_experts": 1,
    "intermediate_size": 2304,
    "expert_weights_scale": 1.5,
    "expert_weights_norm": True,
    "swiglu_limits": (10.0,) * 40,
    "swiglu_limits_shared": (10.0,) * 40,
    "hc_streams": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
}


def released_model() -> ModelConfig:
    engram = EngramConfig(
        layers=(1, 14),
        ngram_size=4,
        num_heads=8,
        row_dim=256,
        multipliers=((1,) * 4,) * 2,
        bucket_sizes=((16000057,) * 24,) * 2,
        row_offsets=((0,) * 24,) * 2,
        pad_token_id=2,
        token_map=(0,),
    )
    return ModelConfig(
        **BLOCK,
        num_layers=40,
        num_experts=384,
        num_experts_used=6,
        compress_ratios=(0,) * 2 + (2,) * 18 + (1,) * 20,
        compress_rope_theta=160000.0,
        kv_source_layers=(2, 8, 14, 20),
        index_source_layers=(2, 8, 14, 20, 24, 28, 32, 36),
        index_num_heads=32,
        index_head_dim=128,
        index_top_k=512,
        candidate_source_layer=20,
        candidate_top_k_blocks=2048,
        candidate_block_size=8,
        yarn_factor=16.0,
        yarn_original_context=65536,
        yarn_beta_fast=32.0,
        yarn_beta_slow=1.0,
        engram=engram,
    )


def test_the_released_model() -> None:
    shapes = {r.name: r.shape for r in model_requirements(released_model())}
    assert len(shapes) == 1003 - 1  # the Engram table is checked by itself
    table = 768022850 * 256
    total = sum(int(np.prod(shape, dtype=object)) for shape in shapes.values())
    assert total + table == 551_880_778_864 + table
    assert shapes["blk.14.engram_kv.weight"] == (25600, 6144)
    assert shapes["blk.39.attn_q_b.weight"] == (32768, 1280)
    assert shapes["blk.0.ffn_down_exps.weight"] == (384, 5120, 2304)
    assert shapes["blk.36.indexer.attn_q_b.weight"] == (4096, 1280)
    assert shapes["blk.20.attn_compressor_kv.weight"] == (512, 5120)
    assert "blk.20.attn_compressor_gate.weight" not in shapes
    assert "blk.24.indexer.attn_k.weight" not in shapes


def test_the_released_draft() -> None:
    draft = DraftConfig(
        **BLOCK,
        num_layers=3,
        num_experts=128,
        num_experts_used=3,
        block_size=5,
        target_layers=(37, 38, 39),
        noise_token_id=128799,
        markov_rank=256,
        has_confidence=True,
    )
    required = [r for r in draft_requirements(draft) if not r.optional]
    assert len(required) == 77
    assert {r.name: r.shape for r in required}["fc.weight"] == (5120, 15360)


def test_names_of_many_layers_are_joined() -> None:
    names = [f"blk.{i}.attn_norm.weight" for i in (0, 1, 2, 5, 7, 8)]
    assert compact_names([*names, "output.weight", "blk.3.x"]) == [
        "blk.{0-2,5,7-8}.attn_norm.weight",
        "output.weight",
        "blk.3.x",
    ]


def test_shapes_that_hold_the_same_rows() -> None:
    assert same_layout((5,), (1, 5)) and same_layout((1, 5), (5,)) and same_layout((2, 5), (2, 5))
    assert not same_layout((5, 2), (2, 5)) and not same_layout((10,), (2, 5))
    assert not same_layout((2, 3, 5), (6, 5)) and not same_layout((3, 2, 5), (2, 3, 5))


def test_missing_tensors_are_listed_together(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    tiny.remove("output.weight", *[f"blk.{i}.ffn_norm.weight" for i in range(5)])
    path = tiny.write(tmp_path / "m.gguf")
    text = str(error_of(lambda: open_model(path)))
    assert "6 required tensors missing: output.weight, blk.{0-4}.ffn_norm.weight" in text


def test_a_file_without_tensors(tiny: Any, tmp_path: Path, error_of: Callable[..., Any]) -> None:
    table = tiny.tensors["per_layer_token_embd.weight"]
    tiny.tensors = {"per_layer_token_embd.weight": table}
    path = tiny.write(tmp_path / "m.gguf")
    text = str(error_of(lambda: open_model(path)))
    assert "missing: token_embd.weight" in text and "more groups" in text


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_sinks.weight",
        "blk.2.attn_output_a.weight",
        "blk.3.hc_ffn_fn.weight",
        "blk.1.attn_compressor_gate.weight",
        "blk.4.indexer.proj.weight",
        "blk.2.engram_kv.weight",
        "blk.0.engram_gate.weight",
        "blk.4.ffn_up_exps.weight",
    ],
)
def test_wrong_shapes_are_named(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any], name: str
) -> None:
    shape = tiny.tensors[name][1]
    for wrong in ((*shape[:-1], shape[-1] * 2), (shape[0] + 1, *shape[1:]), shape[::-1]):
        if wrong != shape:
            path = tiny.copy().put(name, np.zeros(wrong)).write(tmp_path / "m.gguf")
            error = error_of(lambda path=path: open_model(path))
            assert error.field == name
            assert str(list(wrong)) in str(error) and str(list(shape)) in str(error)


@pytest.mark.parametrize("kind", ["I8", "I32", "F64", "Q8_K", "TQ1_0"])
def test_types_without_decoder_are_refused_where_needed(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any], kind: str
) -> None:
    from memory.gguf.format import BLOCKS

    block, size = BLOCKS[kind]
    tiny.set("expert_feed_forward_length", "u32", 256)
    for layer in range(5):
        for name in ("gate", "up"):
            tiny.put(f"blk.{layer}.ffn_{name}_exps.weight", np.zeros((4, 256, 32)))
            tiny.put(f"blk.{layer}.ffn_{name}_shexp.weight", np.zeros((256, 32)))
        tiny.put(f"blk.{layer}.ffn_down_exps.weight", np.zeros((4, 32, 256)))
        tiny.put(f"blk.{layer}.ffn_down_shexp.weight", np.zeros((32, 256)))
    good = tmp_path / "good.gguf"
    good.write_bytes(tiny.to_bytes()[0])
    assert open_model(good).config.intermediate_size == 256
    data = bytes(32 * 256 // block * size)
    tiny.store("blk.3.ffn_down_shexp.weight", kind, (32, 256), data)
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.to_bytes()[0])
    error = error_of(lambda: open_model(path))
    assert error.field == "blk.3.ffn_down_shexp.weight"
    assert f"storage type {kind} is not supported" in str(error) and "IQ2_XXS" in str(error)


def test_table_without_keys_is_ignored_and_keys_without_table_refused(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    bare = tiny.copy()
    for key in [k for k in tiny.keys if ".ple." in k or ".engram." in k]:
        bare.drop(key)
    assert open_model(bare.write(tmp_path / "bare.gguf")).config.engram is None
    tiny.put("per_layer_token_embd.weight", np.zeros((928, 64)))
    path = tiny.write(tmp_path / "m.gguf")
    error = error_of(lambda: open_model(path))
    assert error.field == "per_layer_token_embd.weight" and "32 columns" in str(error)
