"""Metadata keys of the model, its draft and its tokenizer."""

from __future__ import annotations

import numpy as np
from gguf import GGUFValueType as VT
from gguf import GGUFWriter

from memory.gguf.maker.engram_constants import engram_multipliers, engram_primes
from memory.gguf.maker.shape import Config
from memory.gguf.maker.vocabulary import Vocabulary


def add_ints(
    w: GGUFWriter, key: str, values: list[int] | tuple[int, ...], kind: VT = VT.INT32
) -> None:
    """Add an array of integers; an empty one is left out, which readers need."""
    if values:  # GGUF libraries refuse empty arrays
        w.add_key_value(key, [int(v) for v in values], VT.ARRAY, kind)


def add_common_keys(
    w: GGUFWriter, cfg: Config, arch: str, blocks: int, experts: int, used: int, ratios: list[int]
) -> None:
    """Add the keys that the main model and the draft share."""
    scaling = cfg.get("rope_scaling", {})
    u32: dict[str, int] = {
        "block_count": blocks,
        "context_length": cfg.get("max_position_embeddings", 4096),
        "embedding_length": cfg.hidden,
        "vocab_size": cfg.vocab,
        "attention.head_count": cfg["num_attention_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": cfg["head_dim"],
        "attention.value_length": cfg["head_dim"],
        "attention.q_lora_rank": cfg["q_lora_rank"],
        "attention.sliding_window": cfg["sliding_window"],
        "attention.output_group_count": cfg["o_groups"],
        "attention.output_lora_rank": cfg["o_lora_rank"],
        "attention.indexer.head_count": cfg["index_n_heads"],
        "attention.indexer.key_length": cfg["index_head_dim"],
        "attention.indexer.top_k": cfg["index_topk"],
        "rope.dimension_count": cfg["qk_rope_head_dim"],
        "rope.scaling.original_context_length": scaling.get(
            "original_max_position_embeddings", 65536
        ),
        "expert_count": experts,
        "expert_used_count": used,
        "expert_shared_count": cfg.get("n_shared_experts", 1),
        "expert_feed_forward_length": cfg["moe_intermediate_size"],
        "expert_gating_func": 4,
        "hyper_connection.count": cfg.streams,
        "hyper_connection.sinkhorn_iterations": cfg.get("hc_sinkhorn_iters", 20),
        "hash_layer_count": 0,
    }
    f32: dict[str, float] = {
        "attention.layer_norm_rms_epsilon": cfg.get("rms_norm_eps", cfg.get("norm_eps", 1e-20)),
        "attention.compress_rope_freq_base": cfg["compress_rope_theta"],
        "rope.freq_base": cfg["rope_theta"],
        "rope.scaling.factor": scaling.get("factor", 16),
        "rope.scaling.yarn_beta_fast": scaling.get("beta_fast", 32),
        "rope.scaling.yarn_beta_slow": scaling.get("beta_slow", 1),
        "expert_weights_scale": cfg["routed_scaling_factor"],
        "hyper_connection.epsilon": cfg.get("hc_eps", 1e-6),
    }
    for key, value in u32.items():
        w.add_uint32(f"{arch}.{key}", int(value))
    for key, real in f32.items():
        w.add_float32(f"{arch}.{key}", float(real))
    w.add_string(f"{arch}.rope.scaling.type", "yarn")
    w.add_bool(f"{arch}.expert_weights_norm", bool(cfg.get("norm_topk_prob", True)))
    add_ints(w, f"{arch}.attention.compress_ratios", ratios)
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        w.add_key_value(
            f"{arch}.{key}", [float(cfg["swiglu_limit"])] * blocks, VT.ARRAY, VT.FLOAT32
        )


def add_main_keys(w: GGUFWriter, cfg: Config, token_map: list[int]) -> None:
    """Add the keys of the backbone."""
    arch = "deepseek41"
    add_common_keys(
        w,
        cfg,
        arch,
        cfg.layers,
        cfg["n_routed_experts"],
        cfg["num_experts_per_tok"],
        list(cfg["compress_ratios"]),
    )
    add_ints(w, f"{arch}.attention.kv_source_layers", cfg["kv_source_layer_ids"])
    add_ints(w, f"{arch}.attention.indexer.source_layers", cfg["index_source_layer_ids"])
    if cfg.get("candidate_source_layer_id", -1) >= 0:
        prefix = f"{arch}.attention.indexer.candidate"
        # Signed, unlike all other scalars: llama.cpp refuses UINT32 here.
        w.add_int32(f"{prefix}_source_layer", cfg["candidate_source_layer_id"])
        w.add_uint32(f"{prefix}_top_k_blocks", cfg["candidate_topk_blocks"])
        w.add_uint32(f"{prefix}_block_size", cfg["candidate_block_size"])
    if cfg.engram_layers:
        sizes = [n for layer in engram_primes(cfg) for n in layer]
        w.add_uint32(f"{arch}.embedding_length_per_layer_input", cfg["engram_head_dim"])
        w.add_uint32(f"{arch}.ple.ngram_size", cfg["engram_max_ngram_size"])
        w.add_uint32(f"{arch}.ple.heads_per_ngram", cfg["engram_n_heads"])
        add_ints(w, f"{arch}.ple.layers", cfg.engram_layers)
        add_ints(w, f"{arch}.ple.layer_multipliers", engram_multipliers(cfg), VT.UINT64)
        add_ints(w, f"{arch}.ple.head_offsets", [0, *np.cumsum(sizes)[:-1].tolist()], VT.UINT64)
        add_ints(w, f"{arch}.ple.head_vocab_sizes", sizes, VT.UINT64)
        w.add_uint32(f"{arch}.engram.pad_token_id", cfg.get("engram_pad_token_id", 2))
        add_ints(w, f"{arch}.engram.token_map", token_map)


def add_draft_keys(w: GGUFWriter, cfg: Config) -> None:
    """Add the keys of the draft."""
    arch = "dflash"
    experts = cfg.get("dspark_n_routed_experts", 0) or cfg["n_routed_experts"]
    used = cfg.get("dspark_num_experts_per_tok", 0) or cfg["num_experts_per_tok"]
    add_common_keys(w, cfg, arch, cfg.draft_blocks, experts, used, [0] * cfg.draft_blocks)
    w.add_uint32(f"{arch}.block_size", cfg["dspark_block_size"])
    add_ints(w, f"{arch}.target_layers", cfg["dspark_target_layer_ids"])
    w.add_bool(f"{arch}.hyper_connection.single_pass", True)
    w.add_uint32("tokenizer.ggml.mask_token_id", cfg["dspark_noise_token_id"])


def add_tokenizer_keys(w: GGUFWriter, cfg: Config, vocabulary: Vocabulary) -> None:
    """Add vocabulary, merges and special ids."""
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_string("tokenizer.ggml.pre", "joyai-llm")
    w.add_array("tokenizer.ggml.tokens", list(vocabulary.tokens))
    w.add_array("tokenizer.ggml.token_type", list(vocabulary.token_types))
    w.add_array("tokenizer.ggml.merges", list(vocabulary.merges))
    w.add_uint32("tokenizer.ggml.bos_token_id", cfg.special["bos_token_id"])
    w.add_uint32("tokenizer.ggml.eos_token_id", cfg.special["eos_token_id"])
    w.add_uint32("tokenizer.ggml.padding_token_id", cfg.special["pad_token_id"])
    w.add_bool("tokenizer.ggml.add_bos_token", True)
