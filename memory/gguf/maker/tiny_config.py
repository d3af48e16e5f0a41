"""The built-in tiny configuration: every mechanism of the released model, rows of 256 elements."""

from __future__ import annotations

from typing import Any

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "text_config": {
        "vocab_size": 640,
        "hidden_size": 256,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 10,
        "num_nextn_predict_layers": 3,
        "num_attention_heads": 4,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 3.0,
        "q_lora_rank": 256,
        "head_dim": 256,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-20,
        "o_groups": 2,
        "o_lora_rank": 128,
        "sliding_window": 16,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0],
        "kv_source_layer_ids": [2, 4, 6],
        "index_source_layer_ids": [2, 4, 6, 8],
        "compress_rope_theta": 160000.0,
        "rope_theta": 10000.0,
        "index_n_heads": 8,
        "index_head_dim": 128,
        "index_topk": 24,
        "candidate_source_layer_id": 6,
        "candidate_topk_blocks": 8,
        "candidate_block_size": 4,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-06,
        "engram_layer_ids": [1, 4],
        "engram_num_embeddings": [1851, 2301],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 181,
        "engram_n_heads": 3,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 500,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 637,
        "dspark_target_layer_ids": [7, 8, 9],
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 8,
        "dspark_num_experts_per_tok": 3,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 128,
        },
        "model_type": "deepseek_v41_text",
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "topk_method": "noaux_tc",
        "max_position_embeddings": 4096,
    },
}

TINY_TYPES = (
    "all=q8_0,experts=iq2_xxs+iq1_m,experts.down=iq2_xs,shared=q4_k,output=q6_k,engram=iq4_nl"
)
"""Storage types in the manner of the community files."""

TINY_DAMP = 0.1
"""Factor on random residual updates: of full size they would amplify rounding."""
