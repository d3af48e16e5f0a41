from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.gguf import open_draft, open_model

Named = Callable[..., None]
REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.q_lora_rank",
    "attention.sliding_window",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.compress_ratios",
    "attention.compress_rope_freq_base",
    "attention.kv_source_layers",
    "attention.indexer.source_layers",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.indexer.candidate_top_k_blocks",
    "attention.indexer.candidate_block_size",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_feed_forward_length",
    "expert_gating_func",
    "expert_weights_scale",
    "expert_weights_norm",
    "swiglu_clamp_exp",
    "hyper_connection.count",
    "hyper_connection.sinkhorn_iterations",
    "hyper_connection.epsilon",
    "embedding_length_per_layer_input",
    "engram.pad_token_id",
    "engram.token_map",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
)


@pytest.mark.parametrize("key", REQUIRED)
def test_each_required_key_is_named_when_missing(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any], key: str
) -> None:
    path = tiny.drop(key).write(tmp_path / "m.gguf")
    error = error_of(lambda: open_model(path))
    assert error.field == tiny.full(key) and f"missing metadata key: {tiny.full(key)}" in str(error)


def test_all_missing_keys_are_in_one_message(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    dropped = REQUIRED[1:5] + REQUIRED[-3:]
    path = tiny.drop(*dropped).write(tmp_path / "m.gguf")
    text = str(error_of(lambda: open_model(path)))
    assert "missing metadata 7 keys" in text
    assert all(tiny.full(key) in text for key in dropped)


def test_defaults_of_optional_keys(tiny: Any, tmp_path: Path) -> None:
    full = open_model(tiny.write(tmp_path / "full.gguf")).config
    tiny.drop("vocab_size", "attention.value_length", "rope.freq_base", "swiglu_clamp_shexp")
    tiny.drop("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "hash_layer_count")
    tiny.drop("attention.indexer.candidate_source_layer", "tokenizer.ggml.token_type")
    config = open_model(tiny.write(tmp_path / "m.gguf")).config
    wanted = dataclasses.replace(
        full,
        swiglu_limits_shared=full.swiglu_limits,
        candidate_source_layer=None,
        candidate_top_k_blocks=0,
        candidate_block_size=0,
    )
    assert config == wanted


@pytest.mark.parametrize(("kind", "value"), [("i32", -1), ("u32", 2**32 - 1)])
def test_candidate_source_of_minus_one_means_none(
    tiny: Any, tmp_path: Path, kind: str, value: int
) -> None:
    tiny.set("attention.indexer.candidate_source_layer", kind, value)
    config = open_model(tiny.write(tmp_path / "m.gguf")).config
    assert config.candidate_source_layer is None


@pytest.mark.parametrize("kind", ["u8", "i8", "u16", "i16", "i32", "u64", "i64"])
def test_integers_of_any_width(tiny: Any, tmp_path: Path, kind: str) -> None:
    plain = open_model(tiny.write(tmp_path / "plain.gguf")).config
    for key, (stored, value) in list(tiny.keys.items()):
        if stored in ("u32", "i32") and value < 128:
            tiny.set(key, kind, value)
        if stored in ("[i32]", "[u64]") and max(value) < 128:
            tiny.set(key, f"[{kind}]", value)
    assert open_model(tiny.write(tmp_path / "m.gguf")).config == plain


def test_scalars_and_arrays_are_exchangeable(tiny: Any, tmp_path: Path) -> None:
    plain = open_model(tiny.write(tmp_path / "plain.gguf")).config
    tiny.set("expert_feed_forward_length", "[i32]", [64] * 5)
    tiny.set("attention.head_count", "[u32]", [4] * 5)
    tiny.set("attention.head_count_kv", "[u32]", [1] * 5)
    tiny.set("swiglu_clamp_exp", "f32", 3.0)
    tiny.set("swiglu_clamp_shexp", "[f64]", [4.0] * 8)
    tiny.set("rope.freq_base", "f64", 10000.0).set("rope.scaling.factor", "u32", 16)
    assert open_model(tiny.write(tmp_path / "m.gguf")).config == plain


NAN = float("nan")
WRONG: list[tuple[str, str, Any, str]] = [
    ("block_count", "u32", 0, "between 1 and 1024"),
    ("block_count", "u32", 2**31, "between 1 and 1024"),
    ("block_count", "str", "five", "not an integer"),
    ("block_count", "bool", True, "not an integer"),
    ("block_count", "f32", 5.0, "not an integer"),
    ("embedding_length", "u32", 0, "between"),
    ("embedding_length", "u64", 2**63, "between"),
    ("embedding_length", "i32", -32, "between"),
    ("context_length", "u32", 0, "between"),
    ("vocab_size", "u32", 41, "tokenizer has 40"),
    ("attention.head_count", "u32", 0, "between"),
    ("attention.head_count", "[u32]", [4, 4, 8, 4, 4], "not an integer"),
    ("attention.head_count_kv", "u32", 4, "between 1 and 1"),
    ("attention.key_length", "u32", 0, "between"),
    ("attention.value_length", "u32", 16, "between 32 and 32"),
    ("attention.layer_norm_rms_epsilon", "f32", NAN, "nan"),
    ("attention.layer_norm_rms_epsilon", "f32", float("inf"), "inf"),
    ("attention.layer_norm_rms_epsilon", "f32", -1e-6, "between"),
    ("attention.layer_norm_rms_epsilon", "str", "1e-6", "not a number"),
    ("attention.sliding_window", "u32", 0, "between"),
    ("attention.sliding_window", "u32", 1 << 27, "between 1 and 65536"),
    ("attention.indexer.top_k", "u32", 1 << 27, "between 1 and 65536"),
    ("attention.indexer.candidate_block_size", "u32", 1 << 27, "between 1 and 65536"),
    ("hyper_connection.sinkhorn_iterations", "u32", 1 << 20, "between 1 and 128"),
    ("attention.output_group_count", "u32", 3, "do not divide"),
    ("rope.dimension_count", "u32", 15, "even"),
    ("rope.dimension_count", "u32", 64, "up to the head size"),
    ("rope.dimension_count", "u32", 0, "between"),
    ("rope.freq_base", "f32", 0.0, "between"),
    ("rope.freq_base", "f32", NAN, "nan"),
    ("rope.scaling.type", "str", "linear", "only yarn"),
    ("rope.scaling.type", "u32", 1, "not a string"),
    ("rope.scaling.factor", "f32", 0.5, "between"),
    ("rope.scaling.yarn_beta_fast", "f32", 0.5, "not above"),
    ("rope.scaling.original_context_length", "u32", 0, "between"),
    ("attention.compress_rope_freq_base", "f32", -1.0, "between"),
    ("expert_count", "u32", 0, "between"),
    ("expert_used_count", "u32", 5, "more than the 4 experts"),
    ("expert_used_count", "u32", 0, "between"),
    ("expert_shared_count", "u32", 2, "between 1 and 1"),
    ("expert_gating_func", "u32", 2, "between 4 and 4"),
    ("expert_feed_forward_length", "[i32]", [64, 64, 32, 64, 64], "not an integer"),
    ("expert_weights_scale", "f32", NAN, "nan"),
    ("expert_weights_norm", "u32", 1, "not a boolean"),
    ("swiglu_clamp_exp", "[f32]", [3.0] * 4, "at least 5"),
    ("swiglu_clamp_exp", "[f32]", [3.0, NAN, 3.0, 3.0, 3.0], "nan"),
    ("swiglu_clamp_exp", "[f32]", [3.0, -1.0, 3.0, 3.0, 3.0], "-1"),
    ("swiglu_clamp_shexp", "[str]", ["3"] * 5, "not a number"),
    ("hyper_connection.count", "u32", 0, "between 1 and 8"),
    ("hyper_connection.count", "u32", 9, "between 1 and 8"),
    ("hyper_connection.sinkhorn_iterations", "u32", 0, "between"),
    ("hyper_connection.epsilon", "f32", NAN, "nan"),
    ("hash_layer_count", "u32", 3, "between 0 and 0"),
    ("attention.compress_ratios", "[i32]", [0, 2, 2, 1], "4 entries for 5"),
    ("attention.compress_ratios", "[f32]", [0.0] * 5, "not an array of integers"),
    ("attention.compress_ratios", "u32", 2, "not an array of integers"),
    ("attention.indexer.key_length", "u32", 8, "below rope.dimension_count"),
    ("attention.indexer.top_k", "u32", 0, "between"),
    ("attention.indexer.candidate_source_layer", "i32", 5, "between 0 and 4"),
    ("attention.indexer.candidate_source_layer", "i32", -2, "between 0 and 4"),
    ("tokenizer.ggml.tokens", "[str]", ["a"] * 39, "one per token"),
    ("tokenizer.ggml.tokens", "[u32]", [1] * 40, "array of strings"),
    ("tokenizer.ggml.merges", "[u32]", [1], "array of strings"),
    ("tokenizer.ggml.token_type", "[i32]", [1] * 39, "one per token"),
    ("tokenizer.ggml.token_type", "[f32]", [1.0] * 40, "one per token"),
    ("tokenizer.ggml.eos_token_id", "u32", 40, "between 0 and 39"),
    ("tokenizer.ggml.bos_token_id", "i32", -1, "between 0 and 39"),
    ("tokenizer.ggml.padding_token_id", "u32", 2**32 - 1, "between 0 and 39"),
]


@pytest.mark.parametrize(("key", "kind", "value", "words"), WRONG)
def test_wrong_values_are_named(
    tiny: Any,
    tmp_path: Path,
    error_of: Callable[..., Any],
    key: str,
    kind: str,
    value: Any,
    words: str,
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.set(key, kind, value).to_bytes()[0])
    error = error_of(lambda: open_model(path))
    wanted = "tokenizer.ggml.token_type" if words == "one per token" else key
    assert error.field == tiny.full(wanted) and words in str(error)


def test_empty_vocabulary(tiny: Any, tmp_path: Path, error_of: Callable[..., Any]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny.set("tokenizer.ggml.tokens", "[str]", []).to_bytes()[0])
    assert "vocabulary is empty" in str(error_of(lambda: open_model(path)))


def test_model_without_compression_and_engram(tiny: Any, tmp_path: Path) -> None:
    for key in [k for k in tiny.keys if ".ple." in k or ".engram." in k or "candidate" in k]:
        tiny.drop(key)
    tiny.drop("attention.kv_source_layers", "attention.indexer.source_layers")
    tiny.set("attention.compress_ratios", "[i32]", [0] * 5)
    tiny.remove(*[n for n in tiny.tensors if "engram" in n or "per_layer" in n])
    tiny.remove(*[n for n in tiny.tensors if "compressor" in n or "indexer" in n])
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    assert model.config.kv_source_layers == () and model.config.engram is None
    assert model.engram is None


# ---- drafts

DRAFT_REQUIRED = (
    "block_count",
    "block_size",
    "target_layers",
    "tokenizer.ggml.mask_token_id",
    "rope.dimension_count",
    "expert_count",
    "hyper_connection.count",
    "attention.layer_norm_rms_epsilon",
)


@pytest.mark.parametrize("key", DRAFT_REQUIRED)
def test_each_required_draft_key_is_named(
    tiny_draft: Any, tmp_path: Path, error_of: Callable[..., Any], key: str
) -> None:
    path = tiny_draft.drop(key).write(tmp_path / "d.gguf")
    assert error_of(lambda: open_draft(path)).field == tiny_draft.full(key)


def test_draft_needs_few_keys(tiny_draft: Any, tmp_path: Path) -> None:
    full = open_draft(tiny_draft.copy().write(tmp_path / "full.gguf")).config
    tiny_draft.drop("vocab_size", "hyper_connection.single_pass", "attention.compress_ratios")
    for name in ("model", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id"):
        tiny_draft.drop(f"tokenizer.ggml.{name}")
    assert open_draft(tiny_draft.write(tmp_path / "d.gguf")).config == full


def test_target_layers_that_count_from_one(
    tiny: Any, tiny_draft: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    backbone = open_model(tiny.write(tmp_path / "m.gguf")).config
    path = tiny_draft.set("target_layers", "[i32]", [4, 5]).write(tmp_path / "d.gguf")
    assert open_draft(path, backbone).config.target_layers == (3, 4)
    assert open_draft(path).config.target_layers == (4, 5)
    tiny_draft.set("target_layers", "[i32]", [4, 6]).write(path)
    assert error_of(lambda: open_draft(path, backbone)).field == "dflash.target_layers"
    tiny_draft.set("target_layers", "[i32]", [38, 39, 40])
    tiny_draft.put("fc.weight", np.ones((32, 96)), "Q8_0").write(path)
    assert open_draft(path).config.target_layers == (37, 38, 39)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (lambda d: d.set("hyper_connection.single_pass", "bool", False), "single_pass", "V4"),
        (lambda d: d.put("output_hc_fn.weight", np.ones((2, 2))), "single_pass", "DeepSeek V4"),
        (lambda d: d.set("attention.compress_ratios", "[i32]", [0, 2]), "compress_ratios", "draft"),
        (lambda d: d.set("target_layers", "[i32]", [-1, 2]), "target_layers", "must name"),
        (lambda d: d.set("target_layers", "[i32]", [2]), "fc.weight", "needs [32, 32]"),
        (lambda d: d.set("block_size", "u32", 0), "block_size", "between"),
        (lambda d: d.set("tokenizer.ggml.mask_token_id", "u32", 40), "mask_token_id", "between"),
        (lambda d: d.remove("markov_w1.weight"), "markov_w1.weight", "missing"),
        (lambda d: d.put("markov_w2.weight", np.ones((40, 16))), "markov_w2.weight", "[40, 32]"),
        (lambda d: d.put("conf_proj.weight", np.ones((1, 63))), "conf_proj.weight", "[1, 64]"),
        (lambda d: d.remove("blk.1.ffn_up_exps.weight"), "blk.1.ffn_up_exps.weight", "missing"),
    ],
)
def test_wrong_drafts_are_named(
    tiny_draft: Any, assert_named: Named, change: Callable[[Any], Any], field: str, words: str
) -> None:
    assert_named(change(tiny_draft), field, words, open_draft)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"hidden_size": 64}, "dflash.embedding_length"),
        ({"vocab_size": 41}, "dflash.vocab_size"),
        ({"hc_streams": 4}, "dflash.hyper_connection.count"),
        ({"num_layers": 4}, "dflash.target_layers"),
    ],
)
def test_draft_of_another_model(
    tiny: Any,
    tiny_draft: Any,
    tmp_path: Path,
    error_of: Callable[..., Any],
    change: dict[str, Any],
    field: str,
) -> None:
    backbone = open_model(tiny.write(tmp_path / "m.gguf")).config
    path = tiny_draft.set("target_layers", "[i32]", [3, 5 if "num_layers" in change else 4])
    path = path.write(tmp_path / "d.gguf")
    other = dataclasses.replace(backbone, **change)
    assert error_of(lambda: open_draft(path, other)).field == field


def test_nan_payload_in_the_middle_of_an_array(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    data, marks = tiny.to_bytes()
    struct.pack_into("<I", data, marks["key:deepseek41.swiglu_clamp_exp:value"] + 8, 0x7FC00001)
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert error_of(lambda: open_model(path)).field == "deepseek41.swiglu_clamp_exp"
