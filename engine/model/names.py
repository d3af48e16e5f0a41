"""Which file tensor fills which weight: GGUF names on one side, module parameters on the other.

A pure table; shapes are checked by the loader against the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.model_config import BlockConfig, DraftConfig, ModelConfig

BLOCK_NAMES = {
    "attn_norm.weight": "attention_norm",
    "attn_q_a.weight": "attention.q_a",
    "attn_q_a_norm.weight": "attention.q_a_norm",
    "attn_q_b.weight": "attention.q_b",
    "attn_kv.weight": "attention.kv",
    "attn_kv_a_norm.weight": "attention.kv_norm",
    "attn_sinks.weight": "attention.sinks",
    "attn_output_a.weight": "attention.o_a",
    "attn_output_b.weight": "attention.o_b",
    "ffn_norm.weight": "ffn_norm",
    "ffn_gate_inp.weight": "moe.router",
    "exp_probs_b.bias": "moe.router_bias",
    "ffn_gate_exps.weight": "moe.gate",
    "ffn_up_exps.weight": "moe.up",
    "ffn_down_exps.weight": "moe.down",
    "ffn_gate_shexp.weight": "moe.shared_gate",
    "ffn_up_shexp.weight": "moe.shared_up",
    "ffn_down_shexp.weight": "moe.shared_down",
    "hc_attn_fn.weight": "attention_mixer.fn",
    "hc_attn_base.weight": "attention_mixer.base",
    "hc_attn_scale.weight": "attention_mixer.scale",
    "hc_ffn_fn.weight": "ffn_mixer.fn",
    "hc_ffn_base.weight": "ffn_mixer.base",
    "hc_ffn_scale.weight": "ffn_mixer.scale",
}
COMPRESSOR_NAMES = {
    "attn_compressor_kv.weight": "compressor.kv",
    "attn_compressor_norm.weight": "compressor.norm",
    "indexer.attn_k.weight": "compressor.index_k",
    "indexer.k_norm.weight": "compressor.index_k_norm",
}
COMPRESSOR_GATE = {"attn_compressor_gate.weight": "compressor.gate"}
INDEXER_NAMES = {
    "indexer.attn_q_b.weight": "indexer.q_b",
    "indexer.proj.weight": "indexer.weights_proj",
}
ENGRAM_NAMES = {
    "engram_kv.weight": "engram.kv",
    "engram_gate.weight": "engram.gate_weight",
}
MODEL_NAMES = {
    "token_embd.weight": "embedding",
    "output_norm.weight": "norm",
    "output.weight": "head",
}
DRAFT_NAMES = {
    "fc.weight": "main_proj",
    "enc.output_norm.weight": "main_norm",
    "output_norm.weight": "norm",
    "markov_w1.weight": "markov_embed",
    "markov_w2.weight": "markov_head",
}
DRAFT_CONFIDENCE = {"conf_proj.weight": "confidence"}


def _blocks(config: BlockConfig, parent: str) -> Iterator[tuple[str, str]]:
    for layer in range(config.num_layers):
        for suffix, parameter in BLOCK_NAMES.items():
            yield f"blk.{layer}.{suffix}", f"{parent}.{layer}.{parameter}"


def backbone_names(config: ModelConfig) -> dict[str, str]:
    """Return tensor name -> parameter path of `Backbone` for this configuration."""
    names = {**MODEL_NAMES, **dict(_blocks(config, "layers"))}
    for layer in range(config.num_layers):
        tables = []
        if layer in config.kv_source_layers:
            tables.append(COMPRESSOR_NAMES)
            if config.compress_ratios[layer] > 1:
                tables.append(COMPRESSOR_GATE)
        if layer in config.index_source_layers:
            tables.append(INDEXER_NAMES)
        if config.engram is not None and layer in config.engram.layers:
            tables.append(ENGRAM_NAMES)
        for table in tables:
            for suffix, parameter in table.items():
                names[f"blk.{layer}.{suffix}"] = f"layers.{layer}.{parameter}"
    return names


def draft_names(config: DraftConfig) -> dict[str, str]:
    """Return tensor name -> parameter path of `Draft` for this configuration."""
    names = {**DRAFT_NAMES, **dict(_blocks(config, "stages"))}
    return names | (DRAFT_CONFIDENCE if config.has_confidence else {})
