"""Turn metadata under layout-U names into `ModelConfig` and `DraftConfig`.

Every value is range-checked here, once; the rest of the project trusts the configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.errors import ModelFileError
from engine.model_config import DraftConfig, ModelConfig
from memory.gguf.engram_keys import engram_key_names, read_engram_config
from memory.gguf.format import quote
from memory.gguf.keys import KeyReader
from memory.gguf.layouts import DRAFT_ARCH, MODEL_ARCH, MappedModel
from memory.gguf.roles import check_roles
from memory.gguf.tensors import TensorInfo
from memory.gguf.tokenizer_keys import TOKENIZER_KEYS, read_tokenizer_size, read_vocab_size

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20
MAX_TOKENS = 1 << 30
# Windows and selections size caches and index tensors, so a damaged value must not pass.
MAX_SELECTED = 1 << 16
MAX_REAL = 1e9


COMMON_KEYS = (
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
    "rope.dimension_count",
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
)
MODEL_KEYS = (
    *COMMON_KEYS,
    "attention.compress_ratios",
    "attention.compress_rope_freq_base",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    *TOKENIZER_KEYS,
)
SOURCE_KEYS = ("attention.kv_source_layers", "attention.indexer.source_layers")
CANDIDATE = "attention.indexer.candidate"
CANDIDATE_KEYS = (f"{CANDIDATE}_top_k_blocks", f"{CANDIDATE}_block_size")
DRAFT_KEYS = (*COMMON_KEYS, "block_size", "target_layers", "tokenizer.ggml.mask_token_id")


def has_candidates(keys: KeyReader) -> bool:
    """Return whether the model has a candidate step; -1, also unsigned, stands for none."""
    key = f"{CANDIDATE}_source_layer"
    return keys.has(key) and keys.get(key) not in (-1, 0xFFFFFFFF)


def required_keys(keys: KeyReader) -> list[str]:
    """Return the keys that this backbone needs, given those it has."""
    required = list(MODEL_KEYS)
    ratios = keys.metadata.get(keys.name("attention.compress_ratios"))
    # A model without compressed layers has no sources; an empty array cannot be written.
    if not isinstance(ratios, np.ndarray) or ratios.any():
        required += SOURCE_KEYS
    if has_candidates(keys):
        required += CANDIDATE_KEYS
    return required + engram_key_names(keys)


def read_block_fields(keys: KeyReader, vocab_size: int) -> dict[str, Any]:
    """Read the fields of `BlockConfig`.

    Raises:
        ModelFileError: a value has a wrong type or range or contradicts another.
    """
    layers = keys.integer("block_count", 1, MAX_LAYERS)
    fields: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": keys.integer("embedding_length", 1, MAX_WIDTH),
        "vocab_size": vocab_size,
        "context_length": keys.integer("context_length", 1, MAX_TOKENS),
        "num_heads": keys.integer("attention.head_count", 1, 1 << 16),
        "head_dim": keys.integer("attention.key_length", 1, 1 << 16),
        "rope_dim": keys.integer("rope.dimension_count", 2, 1 << 16),
        "q_lora_rank": keys.integer("attention.q_lora_rank", 1, MAX_WIDTH),
        "o_groups": keys.integer("attention.output_group_count", 1, 1 << 16),
        "o_lora_rank": keys.integer("attention.output_lora_rank", 1, MAX_WIDTH),
        "window": keys.integer("attention.sliding_window", 1, MAX_SELECTED),
        "norm_eps": keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        "rope_theta": keys.real("rope.freq_base", 1.0, 1e12, 10000.0),
        "num_experts": keys.integer("expert_count", 1, 1 << 16),
        "num_experts_used": keys.integer("expert_used_count", 1, 1 << 16),
        "num_shared_experts": keys.integer("expert_shared_count", 1, 1),
        "intermediate_size": keys.integer("expert_feed_forward_length", 1, MAX_WIDTH),
        "expert_weights_scale": keys.real("expert_weights_scale", 0.0, MAX_REAL),
        "expert_weights_norm": keys.boolean("expert_weights_norm"),
        "swiglu_limits": keys.reals("swiglu_clamp_exp", layers, 0.0, MAX_REAL),
        "hc_streams": keys.integer("hyper_connection.count", 1, 8),
        "hc_sinkhorn_iters": keys.integer("hyper_connection.sinkhorn_iterations", 1, 128),
        "hc_eps": keys.real("hyper_connection.epsilon", 0.0, 1.0),
    }
    fields["swiglu_limits_shared"] = (
        keys.reals("swiglu_clamp_shexp", layers, 0.0, MAX_REAL)
        if keys.has("swiglu_clamp_shexp")
        else fields["swiglu_limits"]
    )
    keys.integer("expert_gating_func", 4, 4)
    keys.integer("attention.head_count_kv", 1, 1)
    keys.integer("hash_layer_count", 0, 0, 0)
    width = fields["head_dim"]
    keys.integer("attention.value_length", width, width, width)
    if fields["rope_dim"] % 2 or fields["rope_dim"] > fields["head_dim"]:
        raise keys.fail(
            "rope.dimension_count",
            f"{fields['rope_dim']} is not an even number up to the head size {fields['head_dim']}",
        )
    if fields["num_heads"] % fields["o_groups"]:
        raise keys.fail(
            "attention.output_group_count",
            f"{fields['num_heads']} heads do not divide into {fields['o_groups']} groups",
        )
    if fields["num_experts_used"] > fields["num_experts"]:
        raise keys.fail(
            "expert_used_count",
            f"{fields['num_experts_used']} is more than the {fields['num_experts']} experts",
        )
    return fields


def read_model_config(model: MappedModel) -> ModelConfig:
    """Build the config of a backbone.

    Raises:
        ModelFileError: keys are missing (all are named) or a value cannot be right.
    """
    keys = KeyReader(model.path, model.metadata, MODEL_ARCH)
    keys.require(required_keys(keys))
    vocab_size = read_vocab_size(keys, read_tokenizer_size(keys), 0)
    fields = read_block_fields(keys, vocab_size)
    layers = fields["num_layers"]
    ratios = keys.integers("attention.compress_ratios")
    fields |= {
        "compress_rope_theta": keys.real("attention.compress_rope_freq_base", 1.0, 1e12),
        "kv_source_layers": tuple(keys.integers(SOURCE_KEYS[0], [])),
        "index_source_layers": tuple(keys.integers(SOURCE_KEYS[1], [])),
        "index_num_heads": keys.integer("attention.indexer.head_count", 1, 1 << 16),
        "index_head_dim": keys.integer("attention.indexer.key_length", 1, 1 << 16),
        "index_top_k": keys.integer("attention.indexer.top_k", 1, MAX_SELECTED),
        "yarn_factor": keys.real("rope.scaling.factor", 1.0, 1e6),
        "yarn_original_context": keys.integer(
            "rope.scaling.original_context_length", 1, MAX_TOKENS
        ),
        "yarn_beta_fast": keys.real("rope.scaling.yarn_beta_fast", 0.0, 1e6, 32.0),
        "yarn_beta_slow": keys.real("rope.scaling.yarn_beta_slow", 0.0, 1e6, 1.0),
        "candidate_source_layer": None,
        "candidate_top_k_blocks": 0,
        "candidate_block_size": 0,
    }
    if has_candidates(keys):
        fields |= {
            "candidate_source_layer": keys.integer(f"{CANDIDATE}_source_layer", 0, layers - 1),
            "candidate_top_k_blocks": keys.integer(CANDIDATE_KEYS[0], 1, MAX_SELECTED),
            "candidate_block_size": keys.integer(CANDIDATE_KEYS[1], 1, MAX_SELECTED),
        }
    scaling = keys.text("rope.scaling.type")
    if scaling != "yarn":
        raise keys.fail("rope.scaling.type", f"{quote(scaling)!r}; only yarn is supported")
    if fields["yarn_beta_fast"] <= fields["yarn_beta_slow"]:
        raise keys.fail(
            "rope.scaling.yarn_beta_fast",
            f"{fields['yarn_beta_fast']:g} is not above yarn_beta_slow "
            f"{fields['yarn_beta_slow']:g}",
        )
    if len(ratios) < layers:
        raise keys.fail("attention.compress_ratios", f"{len(ratios)} entries for {layers} layers")
    fields["compress_ratios"] = tuple(ratios[:layers])
    if any(fields["compress_ratios"]) and fields["rope_dim"] > fields["index_head_dim"]:
        raise keys.fail(
            "attention.indexer.key_length",
            f"{fields['index_head_dim']} is below rope.dimension_count {fields['rope_dim']}",
        )
    engram = read_engram_config(keys, model, layers, vocab_size)
    config = ModelConfig(**fields, engram=engram)
    check_roles(config, keys)
    return config


def read_draft_config(
    path: str,
    metadata: Mapping[str, object],
    tensors: Mapping[str, TensorInfo],
    backbone: ModelConfig | None,
) -> DraftConfig:
    """Build the config of a DSpark draft.

    Args:
        path: the draft file.
        metadata: its metadata.
        tensors: its tensors.
        backbone: config of the model it drafts for, to check that the two fit.

    Raises:
        ModelFileError: keys are missing (all are named), a value cannot be right, it is a draft of
            another model, or it does not fit the backbone.
    """
    keys = KeyReader(path, metadata, DRAFT_ARCH)
    keys.require(DRAFT_KEYS)
    markov = tensors.get("markov_w1.weight")
    markov_shape = markov.shape if markov is not None and len(markov.shape) == 2 else (0, 0)
    if not keys.boolean("hyper_connection.single_pass", True) or any(
        name.startswith("output_hc_") for name in tensors
    ):
        raise keys.fail("hyper_connection.single_pass", "this is a draft of DeepSeek V4, not V4.1")
    known = backbone.vocab_size if backbone else markov_shape[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab_size = read_vocab_size(keys, len(tokens) if isinstance(tokens, list) else 0, known)
    fields = read_block_fields(keys, vocab_size)
    targets = keys.integers("target_layers")
    fields |= {
        "block_size": keys.integer("block_size", 1, 64),
        "noise_token_id": keys.integer("tokenizer.ggml.mask_token_id", 0, vocab_size - 1),
        "markov_rank": markov_shape[1],
        "has_confidence": "conf_proj.weight" in tensors,
    }
    if any(keys.integers("attention.compress_ratios", [0])):
        raise keys.fail("attention.compress_ratios", "a draft has no compressed layers")
    limit = backbone.num_layers if backbone else MAX_LAYERS
    # Some converters state the layer after the tapped one, as DeepSeek V4's did.
    shifted = targets == [38, 39, 40] if backbone is None else max(targets, default=0) >= limit
    targets = [layer - shifted for layer in targets]
    if not targets or not all(0 <= layer < limit for layer in targets):
        raise keys.fail(
            "target_layers", f"{targets[:16]} must name 1 or more layers from 0 to {limit - 1}"
        )
    if backbone is not None:
        for name, key in (("hidden_size", "embedding_length"), ("vocab_size", "vocab_size")):
            own, other = fields[name], getattr(backbone, name)
            if own != other:
                raise ModelFileError(
                    path, keys.name(key), f"{own}, but the model it drafts for has {other}"
                )
        if fields["hc_streams"] != backbone.hc_streams:
            raise keys.fail(
                "hyper_connection.count",
                f"{fields['hc_streams']}, but the model it drafts for has {backbone.hc_streams}",
            )
    return DraftConfig(**fields, target_layers=tuple(targets))
