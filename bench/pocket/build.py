"""Modules for a vocabulary, their checkpoints, and the official names of their parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizer
import torch
from backbone import Backbone
from draft import Draft
from layer import Layer
from packing import Coder
from prompt import SYSTEM
from safetensors.torch import load_file
from shape import CONFIG
from torch import Tensor, nn

MAX_FILE_BYTES = 15_000_000

OFFICIAL = {
    "attn_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    "wq_a": "attn.wq_a.weight",
    "q_norm": "attn.q_norm.weight",
    "wq_b": "attn.wq_b.weight",
    "wkv": "attn.wkv.weight",
    "kv_norm": "attn.kv_norm.weight",
    "attn_sink": "attn.attn_sink",
    "wo_a": "attn.wo_a.weight",
    "wo_b": "attn.wo_b.weight",
    "gate": "ffn.gate.weight",
    "gate_bias": "ffn.gate.bias",
    "s1": "ffn.shared_experts.w1.weight",
    "s3": "ffn.shared_experts.w3.weight",
    "s2": "ffn.shared_experts.w2.weight",
    "c_wkv": "attn.compressor.wkv.weight",
    "c_wgate": "attn.compressor.wgate.weight",
    "c_norm": "attn.compressor.norm.weight",
    "i_wk": "attn.indexer.wk.weight",
    "i_knorm": "attn.indexer.k_norm.weight",
    "i_wq": "attn.indexer.wq_b.weight",
    "i_wp": "attn.indexer.weights_proj.weight",
    "e_wkv": "engram.wkv.weight",
    "e_q": "engram.q_weight",
    "e_k": "engram.k_weight",
}
"""Parameter of a layer -> official name without the layer's prefix."""


def build(vocab: Path) -> tuple[Backbone, Draft, Coder, dict[str, Any]]:
    """Untrained backbone and draft for a vocabulary file, its coder and its content."""
    coder, content = tokenizer.load(vocab)
    mapping = tokenizer.token_map(content)
    cfg = {
        **CONFIG,
        "vocab_size": len(content["tokens"]),
        "engram_compressed_vocab_size": max(mapping) + 1,
        "dspark_noise_token_id": coder.special[SYSTEM],
    }
    return Backbone(cfg, mapping), Draft(cfg), coder, content


def layer_pairs(prefix: str, layer: Layer) -> Iterator[tuple[str, Tensor]]:
    for name, p in layer.named_parameters():
        if name in ("w1", "w2", "w3"):
            for e in range(p.shape[0]):
                yield f"{prefix}.ffn.experts.{e}.{name}.weight", p.data[e]
        else:
            yield f"{prefix}.{OFFICIAL.get(name, name)}", p.data


def pairs(backbone: Backbone, draft: Draft) -> Iterator[tuple[str, Tensor]]:
    """Official name and (view of the) parameter."""
    yield "embed.weight", backbone.embed.data
    yield "head.weight", backbone.head.data
    yield "norm.weight", backbone.norm.data
    for n, layer in enumerate(backbone.layers):
        yield from layer_pairs(f"layers.{n}", layer)
    for n, table in zip(backbone.cfg["engram_layer_ids"], backbone.tables, strict=True):
        yield f"layers.{n}.engram.embed.weight", table.data
    last = len(draft.stages) - 1
    for n, stage in enumerate(draft.stages):
        yield from layer_pairs(f"mtp.{n}", stage)
    yield "mtp.0.main_proj.weight", draft.main_proj.data
    yield "mtp.0.main_norm.weight", draft.main_norm.data
    yield f"mtp.{last}.norm.weight", draft.norm.data
    yield f"mtp.{last}.markov_head.embed.weight", draft.m_embed.data
    yield f"mtp.{last}.markov_head.head.weight", draft.m_head.data
    yield f"mtp.{last}.confidence_head.proj.weight", draft.confidence.data


def load_decoded(directory: Path, backbone: Backbone, draft: Draft) -> None:
    """Fill both from a folder of decoded weights."""
    weights = load_file(directory / "weights.safetensors")
    for name, p in pairs(backbone, draft):
        p.copy_(weights[name].reshape(p.shape))


def save(path: Path, name: str, module: nn.Module, meta: dict[str, Any]) -> None:
    """Weights as bf16 in files of at most about 15 MB, and the progress beside them."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, p in module.named_parameters():
        value = p.detach().to(torch.bfloat16 if p.ndim >= 2 else torch.float32).cpu()
        num_bytes = value.numel() * value.element_size()
        if size + num_bytes > MAX_FILE_BYTES:
            shards.append({})
            size = 0
        shards[-1][key] = value
        size += num_bytes
    for n, shard in enumerate(shards):
        torch.save(shard, path / f"{name}-{n}.tmp")
        (path / f"{name}-{n}.tmp").rename(path / f"{name}-{n}.pt")
    (path / f"{name}.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")


def restore(path: Path, name: str, module: nn.Module) -> dict[str, Any] | None:
    """Load what `save` wrote and return its progress; None if there is nothing."""
    if not (path / f"{name}.json").is_file():
        return None
    state: dict[str, Tensor] = {}
    for shard in sorted(path.glob(f"{name}-?.pt")):
        state.update(torch.load(shard, weights_only=True))
    module.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
    meta: dict[str, Any] = json.loads((path / f"{name}.json").read_text(encoding="utf-8"))
    return meta
