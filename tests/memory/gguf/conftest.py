"""A tiny model with every mechanism and its draft, as editable files, and what errors must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf import open_model

HIDDEN, VOCAB, EXPERTS, INNER, STREAMS = 32, 40, 4, 64, 2
HEADS, HEAD_DIM, Q_RANK, GROUPS, O_RANK, INDEX_DIM, INDEX_HEADS = 4, 32, 64, 2, 32, 32, 2
RATIOS = (0, 2, 2, 1, 1)
KV_SOURCES, INDEX_SOURCES, ENGRAM_LAYERS = (1, 3), (1, 3, 4), (0, 2)
PRIMES = ((101, 103, 107, 109), (113, 127, 131, 137))
NGRAM, ENGRAM_HEADS, ROW_DIM = 3, 2, 32
DRAFT_STAGES, DRAFT_EXPERTS, MARKOV_RANK = 2, 3, 32


def multipliers(layer: int, compressed: int) -> list[int]:
    bound = (2**63 - 1) // compressed // 2
    draws = np.random.default_rng(10007 * layer).integers(0, bound, size=NGRAM, dtype=np.int64)
    return [int(v) * 2 + 1 for v in draws]


def block_shapes(experts: int) -> dict[str, tuple[int, ...]]:
    mixes = STREAMS * (STREAMS + 2)
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q_a.weight": (Q_RANK, HIDDEN),
        "attn_q_a_norm.weight": (Q_RANK,),
        "attn_q_b.weight": (HEADS * HEAD_DIM, Q_RANK),
        "attn_kv.weight": (HEAD_DIM, HIDDEN),
        "attn_kv_a_norm.weight": (HEAD_DIM,),
        "attn_sinks.weight": (HEADS,),
        "attn_output_a.weight": (GROUPS * O_RANK, HEADS * HEAD_DIM // GROUPS),
        "attn_output_b.weight": (HIDDEN, GROUPS * O_RANK),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate_inp.weight": (experts, HIDDEN),
        "exp_probs_b.bias": (experts,),
        "ffn_gate_exps.weight": (experts, INNER, HIDDEN),
        "ffn_up_exps.weight": (experts, INNER, HIDDEN),
        "ffn_down_exps.weight": (experts, HIDDEN, INNER),
        "ffn_gate_shexp.weight": (INNER, HIDDEN),
        "ffn_up_shexp.weight": (INNER, HIDDEN),
        "ffn_down_shexp.weight": (HIDDEN, INNER),
    }
    for part in ("attn", "ffn"):
        shapes[f"hc_{part}_fn.weight"] = (mixes, STREAMS * HIDDEN)
        shapes[f"hc_{part}_base.weight"] = (mixes,)
        shapes[f"hc_{part}_scale.weight"] = (3,)
    return shapes


def model_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCAB, HIDDEN),
    }
    for layer, ratio in enumerate(RATIOS):
        own = block_shapes(EXPERTS)
        if layer in KV_SOURCES:
            own["attn_compressor_kv.weight"] = (HEAD_DIM, HIDDEN)
            if ratio == 2:
                own["attn_compressor_gate.weight"] = (HEAD_DIM, HIDDEN)
            own["attn_compressor_norm.weight"] = (HEAD_DIM,)
            own["indexer.attn_k.weight"] = (INDEX_DIM, HEAD_DIM)
            own["indexer.k_norm.weight"] = (INDEX_DIM,)
        if layer in INDEX_SOURCES:
            own["indexer.attn_q_b.weight"] = (INDEX_HEADS * INDEX_DIM, Q_RANK)
            own["indexer.proj.weight"] = (INDEX_HEADS, HIDDEN)
        if layer in ENGRAM_LAYERS:
            width = (NGRAM - 1) * ENGRAM_HEADS * ROW_DIM
            own["engram_kv.weight"] = ((STREAMS + 1) * HIDDEN, width)
            own["engram_gate.weight"] = (STREAMS, HIDDEN)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    shapes["per_layer_token_embd.weight"] = (sum(map(sum, PRIMES)), ROW_DIM)
    return shapes


def draft_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, 2 * HIDDEN),
        "enc.output_norm.weight": (HIDDEN,),
        "output_norm.weight": (HIDDEN,),
        "markov_w1.weight": (VOCAB, MARKOV_RANK),
        "markov_w2.weight": (VOCAB, MARKOV_RANK),
        "conf_proj.weight": (1, HIDDEN + MARKOV_RANK),
    }
    for stage in range(DRAFT_STAGES):
        own = block_shapes(DRAFT_EXPERTS)
        shapes |= {f"blk.{stage}.{name}": shape for name, shape in own.items()}
    return shapes


def fill(file: Any, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        matrix = len(shape) > 1 and "gate.weight" not in name and "hc_" not in name
        file.put(name, rng.standard_normal(shape), "Q8_0" if matrix else "F32")


def add_block_keys(file: Any, layers: int, experts: int) -> None:
    file.set("general.architecture", "str", file.arch).set("general.name", "str", "Tiny")
    for key, value in {
        "block_count": layers,
        "context_length": 4096,
        "embedding_length": HIDDEN,
        "vocab_size": VOCAB,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.q_lora_rank": Q_RANK,
        "attention.sliding_window": 8,
        "attention.output_group_count": GROUPS,
        "attention.output_lora_rank": O_RANK,
        "rope.dimension_count": 16,
        "expert_count": experts,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": INNER,
        "expert_gating_func": 4,
        "hyper_connection.count": STREAMS,
        "hyper_connection.sinkhorn_iterations": 20,
    }.items():
        file.set(key, "u32", value)
    file.set("attention.layer_norm_rms_epsilon", "f32", 1e-20)
    file.set("rope.freq_base", "f32", 10000.0)
    file.set("expert_weights_scale", "f32", 1.5)
    file.set("hyper_connection.epsilon", "f32", 1e-6)
    file.set("expert_weights_norm", "bool", True)
    file.set("swiglu_clamp_exp", "[f32]", [3.0] * layers)
    file.set("swiglu_clamp_shexp", "[f32]", [4.0] * layers)
    file.set("tokenizer.ggml.model", "str", "gpt2")
    file.set("tokenizer.ggml.tokens", "[str]", [f"tok{i}" for i in range(VOCAB)])
    file.set("tokenizer.ggml.token_type", "[i32]", [1] * VOCAB)
    file.set("tokenizer.ggml.merges", "[str]", ["t o", "to k"])
    file.set("tokenizer.ggml.bos_token_id", "u32", 0)
    file.set("tokenizer.ggml.eos_token_id", "u32", 1)


def make_model(file: Any, seed: int = 1) -> Any:
    """Make an empty file a backbone in layout U."""
    add_block_keys(file, len(RATIOS), EXPERTS)
    file.set("hash_layer_count", "u32", 0)
    file.set("attention.compress_ratios", "[i32]", [*RATIOS, 0, 0])
    file.set("attention.compress_rope_freq_base", "f32", 160000.0)
    file.set("attention.kv_source_layers", "[i32]", KV_SOURCES)
    file.set("attention.indexer.source_layers", "[i32]", INDEX_SOURCES)
    file.set("attention.indexer.head_count", "u32", INDEX_HEADS)
    file.set("attention.indexer.key_length", "u32", INDEX_DIM)
    file.set("attention.indexer.top_k", "u32", 8)
    file.set("attention.indexer.candidate_source_layer", "i32", 3)
    file.set("attention.indexer.candidate_top_k_blocks", "u32", 4)
    file.set("attention.indexer.candidate_block_size", "u32", 4)
    file.set("rope.scaling.type", "str", "yarn")
    file.set("rope.scaling.factor", "f32", 16.0)
    file.set("rope.scaling.original_context_length", "u32", 128)
    file.set("rope.scaling.yarn_beta_fast", "f32", 32.0)
    file.set("rope.scaling.yarn_beta_slow", "f32", 1.0)
    sizes = [size for row in PRIMES for size in row]
    token_map = [i % 25 for i in range(VOCAB)]
    file.set("embedding_length_per_layer_input", "u32", ROW_DIM)
    file.set("ple.layers", "[i32]", ENGRAM_LAYERS)
    file.set("ple.ngram_size", "u32", NGRAM)
    file.set("ple.heads_per_ngram", "u32", ENGRAM_HEADS)
    file.set(
        "ple.layer_multipliers",
        "[u64]",
        [m for layer in ENGRAM_LAYERS for m in multipliers(layer, 25)],
    )
    file.set("ple.head_offsets", "[u64]", [sum(sizes[:i]) for i in range(len(sizes))])
    file.set("ple.head_vocab_sizes", "[u64]", sizes)
    file.set("engram.pad_token_id", "u32", 2)
    file.set("engram.token_map", "[i32]", token_map)
    fill(file, model_shapes(), seed)
    return file


def make_draft(file: Any, seed: int = 2) -> Any:
    """Make an empty file of that architecture a draft for the backbone of `make_model`."""
    add_block_keys(file, DRAFT_STAGES, DRAFT_EXPERTS)
    file.set("attention.compress_ratios", "[i32]", [0] * DRAFT_STAGES)
    file.set("block_size", "u32", 5)
    file.set("target_layers", "[i32]", [3, 4])
    file.set("hyper_connection.single_pass", "bool", True)
    file.set("tokenizer.ggml.mask_token_id", "u32", 39)
    fill(file, draft_shapes(), seed)
    return file


@pytest.fixture(scope="session")
def _tiny_model(tiny_file: Callable[..., Any]) -> Any:
    return make_model(tiny_file())


@pytest.fixture(scope="session")
def _tiny_draft(tiny_file: Callable[..., Any]) -> Any:
    return make_draft(tiny_file(arch="dflash"))


@pytest.fixture
def tiny(_tiny_model: Any) -> Any:
    """A fresh editable backbone in layout U."""
    return _tiny_model.copy()


@pytest.fixture
def tiny_draft(_tiny_draft: Any) -> Any:
    """A fresh editable draft for `tiny`."""
    return _tiny_draft.copy()


@pytest.fixture
def error_of() -> Callable[[Callable[[], object]], Any]:
    """Call a function that must raise ModelFileError; return the error after checking its form."""

    def run(action: Callable[[], object]) -> ModelFileError:
        with pytest.raises(ModelFileError) as caught:
            action()
        text = str(caught.value)
        assert "\n" not in text and text.isprintable() and len(text) < 2000
        assert text.startswith(caught.value.path)
        return caught.value

    return run


@pytest.fixture
def assert_named(
    error_of: Callable[[Callable[[], object]], Any], tmp_path: Path
) -> Callable[..., None]:
    """assert_named(file, field, words, open_it=open_model): opening it names field and problem.

    `file` is an editable file, `field` a key or tensor, which may lack its first parts.
    """

    def check(
        file: Any, field: str, words: str, open_it: Callable[[Path], object] = open_model
    ) -> None:
        path = file.write(tmp_path / "wrong.gguf")
        error = error_of(lambda: open_it(path))
        assert error.field == field or error.field.endswith(f".{field}"), error
        assert words in str(error)

    return check
