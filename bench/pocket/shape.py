"""The shape of the pocket model, in official field names, and what a forward pass simulates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

CONFIG: dict[str, Any] = {
    "vocab_size": 1536,
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 10,
    "num_nextn_predict_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "q_lora_rank": 128,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-20,
    "o_groups": 2,
    "o_lora_rank": 64,
    "sliding_window": 64,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8],
    "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0,
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 64,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 64,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 1500,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "dspark_block_size": 5,
    "dspark_target_layer_ids": [7, 8, 9],
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
    "model_type": "deepseek_v41_text",
    "hidden_act": "silu",
    "attention_bias": False,
}


@dataclass
class Mode:
    """What a forward pass simulates."""

    dtype: torch.dtype = torch.float32
    top_k: bool = True  # hard selection; otherwise every visible compressed row
    quant_cache: bool = True  # round KV, latents, index keys and queries
    quant_weights: bool = False  # experts as MXFP4 (straight through), for training
