"""Other names under which the facts and tensors of llama.cpp's layout exist in older files."""

from __future__ import annotations

# Canonical key -> other names of the same fact, without the "deepseek41." in front.
ALIASES: dict[str, tuple[str, ...]] = {
    "block_count": ("num_hidden_layers",),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.sliding_window": ("sliding_window",),
    "attention.output_group_count": ("o_groups",),
    "attention.output_lora_rank": ("o_lora_rank",),
    "attention.compress_ratios": ("compress_ratios",),
    "attention.compress_rope_freq_base": ("compress_rope_theta",),
    "attention.kv_source_layers": ("attention.kv_source_layer_ids", "kv_source_layer_ids"),
    "attention.indexer.source_layers": (
        "attention.index_source_layers",
        "attention.index_source_layer_ids",
        "index_source_layer_ids",
    ),
    "attention.indexer.head_count": ("index_n_heads",),
    "attention.indexer.key_length": ("index_head_dim",),
    "attention.indexer.top_k": ("index_topk",),
    "attention.indexer.candidate_source_layer": (
        "attention.candidate_source_layer_id",
        "attention.candidate_source_layer",
        "candidate_source_layer_id",
    ),
    "attention.indexer.candidate_top_k_blocks": (
        "attention.candidate_topk_blocks",
        "attention.candidate_top_k_blocks",
        "attention.indexer.candidate_topk_blocks",
        "candidate_topk_blocks",
    ),
    "attention.indexer.candidate_block_size": (
        "attention.candidate_block_size",
        "candidate_block_size",
    ),
    "rope.dimension_count": ("qk_rope_head_dim",),
    "rope.freq_base": ("rope_theta",),
    "rope.scaling.factor": ("rope_scaling.factor",),
    "rope.scaling.original_context_length": ("rope_scaling.original_max_position_embeddings",),
    "rope.scaling.yarn_beta_fast": ("rope_scaling.beta_fast",),
    "rope.scaling.yarn_beta_slow": ("rope_scaling.beta_slow",),
    "expert_count": ("n_routed_experts",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "swiglu_clamp_exp": ("swiglu_limit",),
    "hyper_connection.count": ("hc_mult",),
    "hyper_connection.sinkhorn_iterations": ("hc_sinkhorn_iters",),
    "hyper_connection.epsilon": ("hc_eps",),
    "embedding_length_per_layer_input": ("engram.key_length", "engram.head_dim"),
    "ple.layers": ("engram.layer_ids", "engram.layers"),
    "ple.ngram_size": ("engram.max_ngram_size", "engram.ngram_size"),
    "ple.heads_per_ngram": ("engram.head_count", "engram.n_heads"),
    "ple.layer_multipliers": ("engram.multipliers", "engram.hash_multipliers"),
    "ple.head_offsets": ("engram.offsets", "engram.head_offsets"),
    "ple.head_vocab_sizes": ("engram.primes", "engram.head_bucket_sizes"),
    "engram.pad_token_id": ("engram.pad_id",),
}

# Tensor names, without "blk.L.", that only differ in name.
RENAMED = {
    "attn_kv_norm.weight": "attn_kv_a_norm.weight",
    "ffn_exp_probs_b.bias": "exp_probs_b.bias",
    "indexer_compressor_kv.weight": "indexer.attn_k.weight",
    "indexer_compressor_norm.weight": "indexer.k_norm.weight",
    "engram_wkv.weight": "engram_kv.weight",
}
# Pairs whose elementwise product is engram_gate.
GATE_FACTORS = (
    ("engram_q.weight", "engram_k.weight"),
    ("engram_q_norm.weight", "engram_k_norm.weight"),
    ("engram_q_weight.weight", "engram_k_weight.weight"),
)
