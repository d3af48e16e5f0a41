"""Every tensor of a model and its draft: file name, shape, class, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from engine.errors import ConfigError
from memory.gguf.maker.engram_constants import engram_primes
from memory.gguf.maker.shape import Config

Array = np.ndarray[Any, Any]


Join = Literal["one", "stack", "rows", "product"]
WRITERS = (
    "attn_output_b.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
    "engram_kv.weight",
)


@dataclass(frozen=True)
class Tensor:
    """One GGUF tensor and the HF tensors it is made of."""

    name: str
    shape: tuple[int, ...]  # row-major; GGUF stores the reverse
    klass: str
    sources: tuple[str, ...]
    join: Join = "one"  # stack: new first axis; rows: along the first; product: elementwise
    layer: int = 0
    gain: float = 1.0  # random mode: scale of a matrix relative to 1/sqrt(row length)

    def gather(self, hf: Mapping[str, Array]) -> Array:
        """Return the F32 value made of checkpoint tensors.

        Raises:
            ConfigError: one is missing or of another size.
        """
        missing = [s for s in self.sources if s not in hf]
        if missing:
            raise ConfigError(f"{self.name}: the checkpoint lacks {missing[0]}")
        parts = [hf[s].astype(np.float32, copy=False) for s in self.sources]
        if self.join == "stack":
            out = np.stack(parts)
        elif self.join == "rows":
            out = np.concatenate(parts)
        elif self.join == "product":
            out = np.multiply(*parts)
        else:
            out = parts[0]
        if out.size != np.prod(self.shape):
            raise ConfigError(
                f"{self.name}: {self.sources[0]} has shape {list(parts[0].shape)}, "
                f"expected {list(self.shape)} in all"
            )
        return np.ascontiguousarray(out.reshape(self.shape))

    def scatter(self, value: Array, rows: list[int]) -> dict[str, Array]:
        """Return the inverse of gather; of a product the second factor becomes 1.

        `rows` are the sizes of the parts for join "rows".
        """
        if self.join == "stack":
            return dict(zip(self.sources, value, strict=True))
        if self.join == "rows":
            return dict(zip(self.sources, np.split(value, np.cumsum(rows)[:-1]), strict=True))
        if self.join == "product":
            return {self.sources[0]: value, self.sources[1]: np.ones_like(value)}
        return {self.sources[0]: value}


CLASSES = {
    "embedding": "token embedding",
    "output": "output head",
    "attention": "q, kv and output projections of attention",
    "compressor": "compressor projections",
    "indexer": "indexer projections",
    "router": "expert router (default f32)",
    "hyper": "hyper-connection mixing matrices (default f32)",
    "experts": "routed experts; experts.gate, experts.up, experts.down override one of the three",
    "shared": "shared expert",
    "engram": "Engram table",
    "engram_proj": "Engram projection",
    "draft": "DSpark fc, Markov and confidence matrices",
}


def single(block: int, hf: str, layer: int) -> Callable[..., Tensor]:
    """A constructor for tensors blk.<block>.* that are one HF tensor <hf>.* each."""

    def make(
        name: str, shape: tuple[int, ...], klass: str, source: str, gain: float = 1.0
    ) -> Tensor:
        return Tensor(
            f"blk.{block}.{name}", shape, klass, (f"{hf}.{source}",), layer=layer, gain=gain
        )

    return make


def block_tensors(cfg: Config, hf: str, index: int, layer: int, experts: int) -> Iterator[Tensor]:
    """Tensors that a backbone layer and a DSpark block share. hf: 'layers.3' or 'mtp.0'."""
    hidden, head_dim, heads, q_rank = (
        cfg.hidden,
        cfg["head_dim"],
        cfg["num_attention_heads"],
        cfg["q_lora_rank"],
    )
    groups, o_rank, ff = cfg["o_groups"], cfg["o_lora_rank"], cfg["moe_intermediate_size"]
    streams = cfg.streams
    mixes = streams * (streams + 2)

    one = single(index, hf, layer)
    yield one("attn_norm.weight", (hidden,), "norm", "attn_norm.weight")
    yield one("attn_q_a.weight", (q_rank, hidden), "attention", "attn.wq_a.weight")
    yield one("attn_q_a_norm.weight", (q_rank,), "norm", "attn.q_norm.weight")
    yield one("attn_q_b.weight", (heads * head_dim, q_rank), "attention", "attn.wq_b.weight")
    yield one("attn_kv.weight", (head_dim, hidden), "attention", "attn.wkv.weight")
    yield one("attn_kv_a_norm.weight", (head_dim,), "norm", "attn.kv_norm.weight")
    yield one("attn_sinks.weight", (heads,), "sinks", "attn.attn_sink")
    yield one(
        "attn_output_a.weight",
        (groups * o_rank, heads * head_dim // groups),
        "attention",
        "attn.wo_a.weight",
    )
    yield one(
        "attn_output_b.weight", (hidden, groups * o_rank), "attention", "attn.wo_b.weight", 1.6
    )
    yield one("ffn_norm.weight", (hidden,), "norm", "ffn_norm.weight")
    yield one("ffn_gate_inp.weight", (experts, hidden), "router", "ffn.gate.weight", 1.5)
    yield one("exp_probs_b.bias", (experts,), "bias", "ffn.gate.bias")
    for name, source, shape, gain in (
        ("gate", "w1", (ff, hidden), 1.0),
        ("up", "w3", (ff, hidden), 1.0),
        ("down", "w2", (hidden, ff), 2.0),
    ):
        yield Tensor(
            f"blk.{index}.ffn_{name}_exps.weight",
            (experts, *shape),
            f"experts.{name}",
            tuple(f"{hf}.ffn.experts.{e}.{source}.weight" for e in range(experts)),
            "stack",
            layer,
            gain,
        )
        yield one(
            f"ffn_{name}_shexp.weight", shape, "shared", f"ffn.shared_experts.{source}.weight", gain
        )
    for part in ("attn", "ffn"):
        yield one(f"hc_{part}_fn.weight", (mixes, streams * hidden), "hyper", f"hc_{part}_fn")
        yield one(f"hc_{part}_base.weight", (mixes,), "hyper_base", f"hc_{part}_base")
        yield one(f"hc_{part}_scale.weight", (3,), "hyper_scale", f"hc_{part}_scale")


def main_tensors(cfg: Config) -> Iterator[Tensor]:
    """Yield every tensor of the backbone."""
    hidden, head_dim = cfg.hidden, cfg["head_dim"]
    index_dim, index_heads = cfg["index_head_dim"], cfg["index_n_heads"]
    yield Tensor("token_embd.weight", (cfg.vocab, hidden), "embedding", ("embed.weight",))
    yield Tensor("output_norm.weight", (hidden,), "norm", ("norm.weight",))
    yield Tensor("output.weight", (cfg.vocab, hidden), "output", ("head.weight",), gain=2.0)
    for layer in range(cfg.layers):
        hf = f"layers.{layer}"
        one = single(layer, hf, layer)
        yield from block_tensors(cfg, hf, layer, layer, cfg["n_routed_experts"])
        if layer in cfg["kv_source_layer_ids"]:
            yield one(
                "attn_compressor_kv.weight",
                (head_dim, hidden),
                "compressor",
                "attn.compressor.wkv.weight",
            )
            if cfg["compress_ratios"][layer] > 1:
                yield one(
                    "attn_compressor_gate.weight",
                    (head_dim, hidden),
                    "compressor",
                    "attn.compressor.wgate.weight",
                    1.5,
                )
            yield one(
                "attn_compressor_norm.weight", (head_dim,), "norm", "attn.compressor.norm.weight"
            )
            yield one(
                "indexer.attn_k.weight", (index_dim, head_dim), "indexer", "attn.indexer.wk.weight"
            )
            yield one("indexer.k_norm.weight", (index_dim,), "norm", "attn.indexer.k_norm.weight")
        if layer in cfg["index_source_layer_ids"]:
            yield one(
                "indexer.attn_q_b.weight",
                (index_heads * index_dim, cfg["q_lora_rank"]),
                "indexer",
                "attn.indexer.wq_b.weight",
            )
            yield one(
                "indexer.proj.weight",
                (index_heads, hidden),
                "indexer",
                "attn.indexer.weights_proj.weight",
            )
        if layer in cfg.engram_layers:
            width = (
                (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"] * cfg["engram_head_dim"]
            )
            yield one(
                "engram_kv.weight",
                ((cfg.streams + 1) * hidden, width),
                "engram_proj",
                "engram.wkv.weight",
            )
            yield Tensor(
                f"blk.{layer}.engram_gate.weight",
                (cfg.streams, hidden),
                "engram_gate",
                (f"{hf}.engram.q_weight", f"{hf}.engram.k_weight"),
                "product",
                layer,
            )
    if cfg.engram_layers:
        rows = sum(map(sum, engram_primes(cfg)))
        yield Tensor(
            "per_layer_token_embd.weight",
            (rows, cfg["engram_head_dim"]),
            "engram",
            tuple(f"layers.{layer}.engram.embed.weight" for layer in cfg.engram_layers),
            "rows",
        )


def draft_tensors(cfg: Config) -> Iterator[Tensor]:
    """Yield every tensor of the draft."""
    hidden, rank, last = cfg.hidden, cfg["dspark_markov_rank"], cfg.draft_blocks - 1
    yield Tensor(
        "fc.weight",
        (hidden, hidden * len(cfg["dspark_target_layer_ids"])),
        "draft",
        ("mtp.0.main_proj.weight",),
    )
    yield Tensor("enc.output_norm.weight", (hidden,), "norm", ("mtp.0.main_norm.weight",))
    yield Tensor("output_norm.weight", (hidden,), "norm", (f"mtp.{last}.norm.weight",))
    yield Tensor(
        "markov_w1.weight", (cfg.vocab, rank), "draft", (f"mtp.{last}.markov_head.embed.weight",)
    )
    yield Tensor(
        "markov_w2.weight", (cfg.vocab, rank), "draft", (f"mtp.{last}.markov_head.head.weight",)
    )
    yield Tensor(
        "conf_proj.weight",
        (1, hidden + rank),
        "draft",
        (f"mtp.{last}.confidence_head.proj.weight",),
    )
    for block in range(cfg.draft_blocks):
        yield from block_tensors(
            cfg,
            f"mtp.{block}",
            block,
            cfg.layers + block,
            cfg.get("dspark_n_routed_experts", 0) or cfg["n_routed_experts"],
        )
