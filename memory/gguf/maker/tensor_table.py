"""Every tensor of a model and its draft, under its GGUF name and its official one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memory.gguf.maker.engram_constants import engram_primes
from memory.gguf.maker.shape import Config
from memory.gguf.maker.tensor import Tensor


def single(block: int, hf: str, layer: int) -> Callable[..., Tensor]:
    """Return a constructor for tensors blk.<block>.* that are one official tensor <hf>.* each."""

    def make(
        name: str, shape: tuple[int, ...], category: str, source: str, gain: float = 1.0
    ) -> Tensor:
        return Tensor(
            f"blk.{block}.{name}", shape, category, (f"{hf}.{source}",), layer=layer, gain=gain
        )

    return make


def block_tensors(cfg: Config, hf: str, index: int, layer: int, experts: int) -> Iterator[Tensor]:
    """Yield the tensors that a backbone layer and a DSpark stage have in common.

    Args:
        cfg: the model's shape.
        hf: official prefix, `layers.3` or `mtp.0`.
        index: block number in the file.
        layer: number by which storage types alternate.
        experts: routed experts.
    """
    one = single(index, hf, layer)
    yield from attention_tensors(cfg, one)
    yield from feed_forward_tensors(cfg, hf, index, layer, experts)
    mixes = cfg.streams * (cfg.streams + 2)
    for part in ("attn", "ffn"):
        width = cfg.streams * cfg.hidden
        yield one(f"hc_{part}_fn.weight", (mixes, width), "hyper", f"hc_{part}_fn")
        yield one(f"hc_{part}_base.weight", (mixes,), "hyper_base", f"hc_{part}_base")
        yield one(f"hc_{part}_scale.weight", (3,), "hyper_scale", f"hc_{part}_scale")


def attention_tensors(cfg: Config, one: Callable[..., Tensor]) -> Iterator[Tensor]:
    """Yield the tensors of one layer's attention, without compressor and indexer."""
    hidden, head_dim, heads = cfg.hidden, cfg["head_dim"], cfg["num_attention_heads"]
    q_rank, groups, o_rank = cfg["q_lora_rank"], cfg["o_groups"], cfg["o_lora_rank"]
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


def feed_forward_tensors(
    cfg: Config, hf: str, index: int, layer: int, experts: int
) -> Iterator[Tensor]:
    """Yield norm, router, routed and shared experts of one layer; arguments as block_tensors."""
    hidden, ff = cfg.hidden, cfg["moe_intermediate_size"]
    one = single(index, hf, layer)
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


def main_tensors(cfg: Config) -> Iterator[Tensor]:
    """Yield every tensor of the backbone, in the order of the file."""
    hidden = cfg.hidden
    yield Tensor("token_embd.weight", (cfg.vocab, hidden), "embedding", ("embed.weight",))
    yield Tensor("output_norm.weight", (hidden,), "norm", ("norm.weight",))
    yield Tensor("output.weight", (cfg.vocab, hidden), "output", ("head.weight",), gain=2.0)
    for layer in range(cfg.layers):
        hf = f"layers.{layer}"
        yield from block_tensors(cfg, hf, layer, layer, cfg["n_routed_experts"])
        yield from compression_tensors(cfg, hf, layer)
        if layer in cfg.engram_layers:
            yield from engram_tensors(cfg, hf, layer)
    if cfg.engram_layers:
        rows = sum(map(sum, engram_primes(cfg)))
        yield Tensor(
            "per_layer_token_embd.weight",
            (rows, cfg["engram_head_dim"]),
            "engram",
            tuple(f"layers.{layer}.engram.embed.weight" for layer in cfg.engram_layers),
            "rows",
        )


def compression_tensors(cfg: Config, hf: str, layer: int) -> Iterator[Tensor]:
    """Yield compressor and index keys of a KV source, the index queries of an index source."""
    hidden, head_dim = cfg.hidden, cfg["head_dim"]
    index_dim, index_heads = cfg["index_head_dim"], cfg["index_n_heads"]
    one = single(layer, hf, layer)
    if layer in cfg["kv_source_layer_ids"]:
        source, shape = "attn.compressor", (head_dim, hidden)
        yield one("attn_compressor_kv.weight", shape, "compressor", f"{source}.wkv.weight")
        if cfg["compress_ratios"][layer] > 1:
            gate = f"{source}.wgate.weight"
            yield one("attn_compressor_gate.weight", shape, "compressor", gate, 1.5)
        yield one("attn_compressor_norm.weight", (head_dim,), "norm", f"{source}.norm.weight")
        shape, source = (index_dim, head_dim), "attn.indexer"
        yield one("indexer.attn_k.weight", shape, "indexer", f"{source}.wk.weight")
        yield one("indexer.k_norm.weight", (index_dim,), "norm", f"{source}.k_norm.weight")
    if layer in cfg["index_source_layer_ids"]:
        shape, source = (index_heads * index_dim, cfg["q_lora_rank"]), "attn.indexer"
        yield one("indexer.attn_q_b.weight", shape, "indexer", f"{source}.wq_b.weight")
        shape = (index_heads, hidden)
        yield one("indexer.proj.weight", shape, "indexer", f"{source}.weights_proj.weight")


def engram_tensors(cfg: Config, hf: str, layer: int) -> Iterator[Tensor]:
    """Yield projection and gate of a layer that reads the n-gram memory."""
    num_columns = (cfg["engram_max_ngram_size"] - 1) * cfg["engram_n_heads"]
    shape = ((cfg.streams + 1) * cfg.hidden, num_columns * cfg["engram_head_dim"])
    one = single(layer, hf, layer)
    yield one("engram_kv.weight", shape, "engram_proj", "engram.wkv.weight")
    yield Tensor(
        f"blk.{layer}.engram_gate.weight",
        (cfg.streams, cfg.hidden),
        "engram_gate",
        (f"{hf}.engram.q_weight", f"{hf}.engram.k_weight"),
        "product",
        layer,
    )


def draft_tensors(cfg: Config) -> Iterator[Tensor]:
    """Yield every tensor of the draft, in the order of the file."""
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
