"""The table has the names and shapes of the released layout."""

from __future__ import annotations

from typing import Any

from memory.gguf.maker.shape import Config
from memory.gguf.maker.tensor_table import draft_tensors, main_tensors

RELEASED = {
    "vocab_size": 129280,
    "hidden_size": 5120,
    "moe_intermediate_size": 2304,
    "num_hidden_layers": 40,
    "num_nextn_predict_layers": 3,
    "num_attention_heads": 64,
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "q_lora_rank": 1280,
    "head_dim": 512,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 16_000_000,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
}


def shapes(tensors: Any) -> dict[str, tuple[int, ...]]:
    table = list(tensors)
    found = {tensor.name: tensor.shape for tensor in table}
    assert len(found) == len(table)
    return found


def num_weights(table: dict[str, tuple[int, ...]]) -> int:
    total = 0
    for shape in table.values():
        size = 1
        for n in shape:
            size *= n
        total += size
    return total


def test_released_backbone() -> None:
    table = shapes(main_tensors(Config.from_mapping(RELEASED)))
    assert len(table) == 1003
    assert table["per_layer_token_embd.weight"] == (768_022_850, 256)
    assert table["blk.14.engram_kv.weight"] == (25600, 6144)
    assert table["blk.39.ffn_down_exps.weight"] == (384, 5120, 2304)
    assert table["blk.0.attn_output_a.weight"] == (8192, 4096)
    assert table["blk.36.indexer.attn_q_b.weight"] == (4096, 1280)
    assert "blk.14.attn_compressor_gate.weight" in table
    assert "blk.20.attn_compressor_gate.weight" not in table
    assert "blk.24.indexer.attn_k.weight" not in table
    table.pop("per_layer_token_embd.weight")
    assert num_weights(table) == 551_880_778_864


def test_released_draft() -> None:
    table = shapes(draft_tensors(Config.from_mapping(RELEASED)))
    assert len(table) == 78  # the confidence head is optional
    assert table["fc.weight"] == (5120, 15360)
    assert table["markov_w2.weight"] == (129280, 256)
    assert table["conf_proj.weight"] == (1, 5376)
    assert table["blk.2.ffn_gate_exps.weight"] == (128, 2304, 5120)
    assert round(num_weights(table) / 1e9, 2) == 14.23


def test_without_engram(config: dict[str, Any]) -> None:
    config["text_config"]["engram_layer_ids"] = []
    assert not any(
        "engram" in name or "per_layer" in name
        for name in shapes(main_tensors(Config.from_mapping(config)))
    )
