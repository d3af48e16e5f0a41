from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memory.gguf import open_model

Named = Callable[..., None]
TABLE = "per_layer_token_embd.weight"
LAYERS = (0, 2)
SPLIT_ROW = 420


def rekey(tiny: Any, old: str, new: str, kind: str = "") -> None:
    stored, value = tiny.keys.pop(tiny.full(old))
    tiny.set(new, kind or stored, value)


def split_table(tiny: Any, suffix: str) -> None:
    """Two tables, local to their layers, instead of one."""
    values = tiny.values[TABLE]
    tiny.remove(TABLE)
    tiny.put(f"blk.0.{suffix}", values[:SPLIT_ROW], "Q8_0")
    tiny.put(f"blk.2.{suffix}", values[SPLIT_ROW:], "Q8_0")
    _, offsets = tiny.keys[tiny.full("ple.head_offsets")]
    tiny.set("ple.head_offsets", "[u64]", [o - SPLIT_ROW * (i >= 4) for i, o in enumerate(offsets)])


def split_gate(tiny: Any, first: str, second: str, kinds: tuple[str, str] = ("F32", "F32")) -> None:
    """Two factors instead of the gate; sets the gate's expected values."""
    rng = np.random.default_rng(3)
    for layer in LAYERS:
        gate = f"blk.{layer}.engram_gate.weight"
        tiny.remove(gate)
        for name, kind in zip((first, second), kinds, strict=True):
            tiny.put(f"blk.{layer}.{name}", rng.standard_normal((2, 32)), kind)
        tiny.values[gate] = (
            tiny.values[f"blk.{layer}.{first}"] * tiny.values[f"blk.{layer}.{second}"]
        )


def drop_roles(tiny: Any) -> None:
    tiny.drop("attention.kv_source_layers", "attention.indexer.source_layers")
    for name in ("source_layer", "top_k_blocks", "block_size"):
        tiny.drop(f"attention.indexer.candidate_{name}")


def to_v(tiny: Any) -> Any:
    split_table(tiny, "engram_embd.weight")
    split_gate(tiny, "engram_q.weight", "engram_k.weight", ("Q8_0", "F16"))
    for layer in LAYERS:
        tiny.rename(f"blk.{layer}.engram_kv.weight", f"blk.{layer}.engram_wkv.weight")
        tiny.put(f"blk.{layer}.exp_probs_b_vl.bias", np.ones(4))
    for old, new in {
        "ple.layers": "engram.layer_ids",
        "ple.ngram_size": "engram.max_ngram_size",
        "ple.heads_per_ngram": "engram.head_count",
        "embedding_length_per_layer_input": "engram.key_length",
        "ple.layer_multipliers": "engram.multipliers",
        "ple.head_offsets": "engram.offsets",
        "ple.head_vocab_sizes": "engram.primes",
        "engram.pad_token_id": "engram.pad_id",
    }.items():
        rekey(tiny, old, new)
    drop_roles(tiny)
    return tiny


def to_y(tiny: Any) -> Any:
    to_v(tiny)
    for key in ("engram.primes", "engram.offsets"):
        rekey(tiny, key, key, "[u32]")
    return tiny.drop("hash_layer_count")


def to_m(tiny: Any) -> Any:
    split_table(tiny, "engram_embed.weight")
    split_gate(tiny, "engram_q.weight", "engram_k.weight")
    for layer in LAYERS:
        tiny.rename(f"blk.{layer}.engram_kv.weight", f"blk.{layer}.engram_wkv.weight")
    for layer in (1, 3):
        tiny.rename(
            f"blk.{layer}.indexer.attn_k.weight", f"blk.{layer}.indexer_compressor_kv.weight"
        )
        tiny.rename(
            f"blk.{layer}.indexer.k_norm.weight", f"blk.{layer}.indexer_compressor_norm.weight"
        )
    for old, new in {
        "ple.layers": "engram.layer_ids",
        "ple.ngram_size": "engram.max_ngram_size",
        "ple.heads_per_ngram": "engram.n_heads",
        "embedding_length_per_layer_input": "engram.head_dim",
        "ple.layer_multipliers": "engram.multipliers",
        "ple.head_offsets": "engram.offsets",
        "ple.head_vocab_sizes": "engram.primes",
        "attention.kv_source_layers": "attention.kv_source_layer_ids",
        "attention.indexer.source_layers": "attention.index_source_layer_ids",
        "attention.indexer.candidate_source_layer": "attention.candidate_source_layer_id",
        "attention.indexer.candidate_top_k_blocks": "attention.candidate_topk_blocks",
        "attention.indexer.candidate_block_size": "attention.candidate_block_size",
    }.items():
        rekey(tiny, old, new)
    tiny.set("engram.compressed_vocab_size", "u32", 25)
    return tiny.drop("hash_layer_count")


def fp8_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and the values they stand for."""
    rng = np.random.default_rng(9)
    codes = torch.from_numpy(values).to(torch.float8_e4m3fn)
    scales = rng.integers(120, 134, (len(values), values.shape[1] // 32), dtype=np.uint8)
    powers = np.ldexp(1.0, scales.astype(int) - 127).repeat(32, axis=1)
    decoded = (codes.float().numpy() * powers).astype(np.float32)
    return codes.view(torch.uint8).numpy(), scales, decoded


def split_fp8_table(tiny: Any, inline: bool) -> None:
    split_table(tiny, "engram_embd.weight")
    for layer in LAYERS:
        name = f"blk.{layer}.engram_embd.weight"
        codes, scales, decoded = fp8_rows(tiny.values[name])
        tiny.values[name] = decoded
        if inline:
            rows = np.concatenate([codes, scales], axis=1)
            tiny.store(name, "I8", rows.shape, rows.tobytes())
        else:
            tiny.store(name, "I8", codes.shape, codes.tobytes())
            tiny.store(
                f"blk.{layer}.engram_embd_scale.weight", "I8", scales.shape, scales.tobytes()
            )


def to_t(tiny: Any) -> Any:
    split_fp8_table(tiny, inline=False)
    split_gate(tiny, "engram_q_weight.weight", "engram_k_weight.weight")
    for old, new in {
        "ple.layers": "engram.layers",
        "ple.ngram_size": "engram.ngram_size",
        "ple.heads_per_ngram": "engram.head_count",
        "embedding_length_per_layer_input": "engram.head_dim",
        "ple.layer_multipliers": "engram.multipliers",
        "ple.head_offsets": "engram.head_offsets",
        "ple.head_vocab_sizes": "engram.head_bucket_sizes",
        "attention.indexer.source_layers": "attention.index_source_layers",
        "attention.indexer.candidate_top_k_blocks": "attention.indexer.candidate_topk_blocks",
    }.items():
        rekey(tiny, old, new)
    tiny.set("engram.embedding_counts", "[u32]", [420, 508])
    return tiny.set("engram.compressed_vocab_size", "u32", 25)


def to_a(tiny: Any) -> Any:
    split_fp8_table(tiny, inline=True)
    split_gate(tiny, "engram_q_norm.weight", "engram_k_norm.weight")
    for old, new in {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.sliding_window": "sliding_window",
        "attention.output_group_count": "o_groups",
        "attention.output_lora_rank": "o_lora_rank",
        "attention.compress_ratios": "compress_ratios",
        "attention.compress_rope_freq_base": "compress_rope_theta",
        "attention.kv_source_layers": "kv_source_layer_ids",
        "attention.indexer.source_layers": "index_source_layer_ids",
        "attention.indexer.head_count": "index_n_heads",
        "attention.indexer.key_length": "index_head_dim",
        "attention.indexer.top_k": "index_topk",
        "attention.indexer.candidate_source_layer": "candidate_source_layer_id",
        "attention.indexer.candidate_top_k_blocks": "candidate_topk_blocks",
        "attention.indexer.candidate_block_size": "candidate_block_size",
        "rope.dimension_count": "qk_rope_head_dim",
        "rope.freq_base": "rope_theta",
        "rope.scaling.factor": "rope_scaling.factor",
        "rope.scaling.original_context_length": "rope_scaling.original_max_position_embeddings",
        "rope.scaling.yarn_beta_fast": "rope_scaling.beta_fast",
        "rope.scaling.yarn_beta_slow": "rope_scaling.beta_slow",
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_count": "n_shared_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": "norm_topk_prob",
        "hyper_connection.count": "hc_mult",
        "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
        "hyper_connection.epsilon": "hc_eps",
        "ple.layers": "engram.layer_ids",
        "ple.layer_multipliers": "engram.multipliers",
        "ple.head_vocab_sizes": "engram.primes",
        "engram.pad_token_id": "engram.pad_id",
    }.items():
        rekey(tiny, old, new)
    for key in (
        "swiglu_clamp_exp",
        "swiglu_clamp_shexp",
        "expert_gating_func",
        "rope.scaling.type",
    ):
        tiny.drop(key)
    tiny.drop("ple.ngram_size", "ple.heads_per_ngram", "ple.head_offsets", "hash_layer_count")
    tiny.drop("embedding_length_per_layer_input", "attention.value_length")
    tiny.set("swiglu_limit", "f32", 3.0).set("scoring_func", "str", "sqrtsoftplus")
    tiny.set("engram.encoding", "str", "e4m3_e8m0_32_row264")
    tiny.put("blk.5.attn_norm.weight", np.ones(32))  # draft stages follow in the same file
    return tiny


MAKERS = {"V": to_v, "Y": to_y, "M": to_m, "T": to_t, "A": to_a}


@pytest.mark.parametrize("layout", MAKERS)
def test_older_layout_gives_the_same_model(tiny: Any, tmp_path: Path, layout: str) -> None:
    reference = open_model(tiny.copy().write(tmp_path / "u.gguf"))
    old = MAKERS[layout](tiny)
    model = open_model(old.write(tmp_path / "old.gguf"))
    assert reference.layout == "U" and model.layout == layout
    without = {"candidate_source_layer", "candidate_top_k_blocks", "candidate_block_size"}
    for name, value in vars(reference.config).items():
        if layout in "VY" and name in without:
            continue  # these layouts state no candidate step
        if layout == "A" and name == "swiglu_limits_shared":
            value = reference.config.swiglu_limits
        assert getattr(model.config, name) == value, name
    if layout in "VY":
        assert model.config.candidate_source_layer is None
    assert set(model.tensors) == set(reference.tensors) - {TABLE}
    for name in model.tensors:
        np.testing.assert_array_equal(model.decode(name).numpy(), old.values[name])
    suffix = "engram_embed.weight" if layout == "M" else "engram_embd.weight"
    table = np.concatenate([old.values[f"blk.{layer}.{suffix}"] for layer in LAYERS])
    rows = np.random.default_rng(4).integers(0, len(table), (7, 4))
    rows[0] = [SPLIT_ROW - 1, SPLIT_ROW, 0, len(table) - 1]
    assert model.engram is not None and model.engram.num_rows == len(table)
    np.testing.assert_array_equal(
        model.engram.gather(rows).numpy(), table[rows].reshape(len(rows), -1)
    )


@pytest.mark.parametrize("layout", ["V", "Y", "M"])
def test_gate_product_as_bytes(tiny: Any, tmp_path: Path, layout: str) -> None:
    model = open_model(MAKERS[layout](tiny).write(tmp_path / "m.gguf"))
    name = "blk.2.engram_gate.weight"
    info = model.tensors[name]
    assert info.quant_type == "F32" and len(info.factors) == 2 and info.shape == (2, 32)
    raw = model.raw(name)
    assert raw.shape == (2, 128) and raw.numel() == info.num_bytes
    np.testing.assert_array_equal(raw.view(torch.float32).numpy(), tiny.values[name])


def test_candidate_step_of_the_released_size_is_filled_in() -> None:
    from memory.gguf.layouts import map_roles

    mapped: dict[str, object] = {"deepseek41.block_count": 40}
    map_roles(mapped, {})
    prefix = "deepseek41.attention.indexer.candidate_"
    assert [mapped[prefix + n] for n in ("source_layer", "top_k_blocks", "block_size")] == [
        20,
        2048,
        8,
    ]


def test_old_names_with_the_new_joined_table(tiny: Any, tmp_path: Path) -> None:
    table = tiny.tensors[TABLE]
    to_v(tiny).store(TABLE, *table)
    for layer in LAYERS:
        tiny.remove(f"blk.{layer}.engram_embd.weight")
    config = open_model(tiny.write(tmp_path / "m.gguf")).config
    assert config.engram is not None
    assert config.engram.row_offsets == ((0, 101, 204, 311), (420, 533, 660, 791))


def test_layer_list_that_forgets_a_layer(tiny: Any, tmp_path: Path) -> None:
    to_v(tiny).set("engram.layer_ids", "[i32]", [0])
    for key, count in (("multipliers", 3), ("primes", 4), ("offsets", 4)):
        kind, value = tiny.keys[f"deepseek41.engram.{key}"]
        tiny.set(f"engram.{key}", kind, value[:count])
    config = open_model(tiny.write(tmp_path / "m.gguf")).config
    assert config.engram is not None and config.engram.layers == (0, 2)
    assert config.engram.bucket_sizes[1] == (113, 127, 131, 137)


def test_tables_with_spare_rows_shift_the_second_base(tiny: Any, tmp_path: Path) -> None:
    to_v(tiny)
    values = tiny.values["blk.0.engram_embd.weight"]
    tiny.put("blk.0.engram_embd.weight", np.pad(values, ((0, 12), (0, 0))), "Q8_0")
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    assert model.config.engram is not None
    assert model.config.engram.row_offsets == ((0, 101, 204, 311), (432, 545, 672, 803))


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (
            lambda t: to_v(t).put("blk.2.engram_embd.weight", np.ones((500, 32)), "Q8_0"),
            "deepseek41.ple.head_offsets",
            "has 500 rows, needs 508",
        ),
        (
            lambda t: to_v(t).put("blk.2.engram_k.weight", np.ones((3, 32))),
            "blk.2.engram_k.weight",
            "differs from",
        ),
        (
            lambda t: to_v(t).remove("blk.2.engram_k.weight"),
            "blk.2.engram_gate.weight",
            "missing",
        ),
        (
            lambda t: to_v(t).remove("blk.2.engram_embd.weight"),
            "deepseek41.ple.layers",
            "layer 2 has no Engram table",
        ),
        (lambda t: to_v(t).drop("engram.token_map"), "deepseek41.engram.token_map", "missing"),
        (
            lambda t: to_a(t).set("engram.encoding", "str", "lloyd4_e5m3_32_r136"),
            "deepseek41.engram.encoding",
            "ds4",
        ),
        (
            lambda t: to_t(t).remove("blk.0.engram_embd_scale.weight"),
            "blk.0.engram_embd_scale.weight",
            "missing",
        ),
        (
            lambda t: to_t(t).store("blk.0.engram_embd_scale.weight", "I8", (420, 2), bytes(840)),
            "blk.0.engram_embd_scale.weight",
            "need I8 [420, 1]",
        ),
        (
            lambda t: to_a(t).put("blk.0.engram_embd.weight", np.ones((420, 33))),
            "blk.0.engram_embd.weight",
            "I8",
        ),
        (
            lambda t: to_a(t).store("blk.0.engram_embd.weight", "I8", (420, 40), bytes(16800)),
            "blk.0.engram_embd.weight",
            "33 bytes",
        ),
    ],
)
def test_what_cannot_be_mapped_is_named(
    tiny: Any, assert_named: Named, change: Callable[[Any], Any], field: str, words: str
) -> None:
    assert_named(change(tiny), field, words)


def test_precautionary_aliases(tiny: Any, tmp_path: Path) -> None:
    tiny.rename("blk.3.attn_kv_a_norm.weight", "blk.3.attn_kv_norm.weight")
    tiny.rename("blk.3.exp_probs_b.bias", "blk.3.ffn_exp_probs_b.bias")
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    for name in ("blk.3.attn_kv_a_norm.weight", "blk.3.exp_probs_b.bias"):
        np.testing.assert_array_equal(model.decode(name).numpy(), tiny.values[name])
