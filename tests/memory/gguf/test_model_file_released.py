"""A set of six sparse files with the shapes and keys of the released model: 248 GB, no data."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from engine.errors import ModelFileError
from memory.gguf import open_model
from memory.gguf.format import BLOCKS
from memory.gguf.header import read_header

VOCAB, LAYERS, ROWS = 129280, 40, 768_022_850
PREFIX = "DeepSeek-V4.1-Flash-1017-GSQ-RCO-IQ2_XXS"
SHARED = "DeepSeek-V4.1-Flash-Engram-IQ4_NL.gguf"

INTEGERS = {
    "block_count": LAYERS,
    "context_length": 1048576,
    "embedding_length": 5120,
    "vocab_size": VOCAB,
    "attention.head_count": 64,
    "attention.head_count_kv": 1,
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.q_lora_rank": 1280,
    "attention.sliding_window": 128,
    "attention.output_group_count": 8,
    "attention.output_lora_rank": 1024,
    "attention.indexer.head_count": 32,
    "attention.indexer.key_length": 128,
    "attention.indexer.top_k": 512,
    "attention.indexer.candidate_top_k_blocks": 2048,
    "attention.indexer.candidate_block_size": 8,
    "rope.dimension_count": 64,
    "rope.scaling.original_context_length": 65536,
    "expert_count": 384,
    "expert_used_count": 6,
    "expert_shared_count": 1,
    "expert_feed_forward_length": 2304,
    "expert_gating_func": 4,
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 20,
    "hash_layer_count": 0,
    "embedding_length_per_layer_input": 256,
    "ple.ngram_size": 4,
    "ple.heads_per_ngram": 8,
    "engram.pad_token_id": 2,
}
REALS = {
    "attention.layer_norm_rms_epsilon": 1e-20,
    "attention.compress_rope_freq_base": 160000.0,
    "rope.freq_base": 10000.0,
    "rope.scaling.factor": 16.0,
    "expert_weights_scale": 1.5,
    "hyper_connection.epsilon": 1e-6,
}
MULTIPLIERS = (
    *(76632096046245, 4839876093313, 35959672319349, 73987337458391),
    *(67716810739261, 51510806800915, 30921347202721, 82619226485591),
)


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of the released text model."""
    out: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, 5120),
        "output_norm.weight": (5120,),
        "output.weight": (VOCAB, 5120),
    }
    for layer in range(LAYERS):
        own: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (5120,),
            "attn_q_a.weight": (1280, 5120),
            "attn_q_a_norm.weight": (1280,),
            "attn_q_b.weight": (32768, 1280),
            "attn_kv.weight": (512, 5120),
            "attn_kv_a_norm.weight": (512,),
            "attn_sinks.weight": (64,),
            "attn_output_a.weight": (8192, 4096),
            "attn_output_b.weight": (5120, 8192),
            "ffn_norm.weight": (5120,),
            "ffn_gate_inp.weight": (384, 5120),
            "exp_probs_b.bias": (384,),
            "exp_probs_b_vl.bias": (384,),
            "ffn_gate_exps.weight": (384, 2304, 5120),
            "ffn_up_exps.weight": (384, 2304, 5120),
            "ffn_down_exps.weight": (384, 5120, 2304),
            "ffn_gate_shexp.weight": (2304, 5120),
            "ffn_up_shexp.weight": (2304, 5120),
            "ffn_down_shexp.weight": (5120, 2304),
        }
        for part in ("attn", "ffn"):
            own[f"hc_{part}_fn.weight"] = (24, 20480)
            own[f"hc_{part}_base.weight"] = (24,)
            own[f"hc_{part}_scale.weight"] = (3,)
        if layer in (2, 8, 14, 20):
            own["attn_compressor_kv.weight"] = (512, 5120)
            own["attn_compressor_norm.weight"] = (512,)
            own["indexer.attn_k.weight"] = (128, 512)
            own["indexer.k_norm.weight"] = (128,)
        if layer in (2, 8, 14):
            own["attn_compressor_gate.weight"] = (512, 5120)
        if layer in (2, 8, 14, 20, 24, 28, 32, 36):
            own["indexer.attn_q_b.weight"] = (4096, 1280)
            own["indexer.proj.weight"] = (32, 5120)
        if layer in (1, 14):
            own["engram_kv.weight"] = (25600, 6144)
            own["engram_gate.weight"] = (4, 5120)
        out |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return out


def storage_type(name: str, shape: tuple[int, ...]) -> str:
    if name.startswith("per_layer"):
        return "IQ4_NL"
    if "_exps." in name:
        return "IQ1_M" if "up" in name else "IQ2_XXS"
    return "F32" if len(shape) == 1 or "gate" in name or "hc_" in name else "Q5_K"


def add_keys(writer: GGUFWriter) -> None:
    def put(key: str, value: Any, kind: GGUFValueType, element: Any = None) -> None:
        full = key if key.startswith("tokenizer") else f"deepseek41.{key}"
        writer.add_key_value(full, value, kind, element)

    kinds = GGUFValueType
    for key, value in INTEGERS.items():
        put(key, value, kinds.UINT32)
    for key, real in REALS.items():
        put(key, real, kinds.FLOAT32)
    put("rope.scaling.type", "yarn", kinds.STRING)
    put("expert_weights_norm", True, kinds.BOOL)
    put("swiglu_clamp_exp", [10.0] * LAYERS, kinds.ARRAY, kinds.FLOAT32)
    put("attention.indexer.candidate_source_layer", 20, kinds.INT32)
    ratios = [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 0]
    index_sources = [2, 8, 14, 20, 24, 28, 32, 36]
    put("attention.compress_ratios", ratios, kinds.ARRAY, kinds.INT32)
    put("attention.kv_source_layers", [2, 8, 14, 20], kinds.ARRAY, kinds.INT32)
    put("attention.indexer.source_layers", index_sources, kinds.ARRAY, kinds.INT32)
    put("ple.layers", [1, 14], kinds.ARRAY, kinds.INT32)
    put("ple.layer_multipliers", list(MULTIPLIERS), kinds.ARRAY, kinds.UINT64)
    token_map = [min(i, 99091) for i in range(VOCAB)]
    put("engram.token_map", token_map, kinds.ARRAY, kinds.INT32)
    tokens = [f"token{i}" for i in range(VOCAB)]
    put("tokenizer.ggml.model", "gpt2", kinds.STRING)
    put("tokenizer.ggml.tokens", tokens, kinds.ARRAY, kinds.STRING)
    put("tokenizer.ggml.token_type", [1] * VOCAB, kinds.ARRAY, kinds.INT32)
    put("tokenizer.ggml.merges", [f"to ken{i}" for i in range(127741)], kinds.ARRAY, kinds.STRING)
    put("tokenizer.ggml.bos_token_id", 0, kinds.UINT32)
    put("tokenizer.ggml.eos_token_id", 1, kinds.UINT32)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The six shards; the last one is a link to the shared table one folder up."""
    outer = tmp_path_factory.mktemp("released")
    folder = outer / "IQ2_XXS"
    folder.mkdir()
    names = list(shapes().items())
    groups = [dict(names[i * 212 : (i + 1) * 212]) for i in range(5)]
    groups.append({"per_layer_token_embd.weight": (ROWS, 256)})
    total = sum(map(len, groups))
    paths = []
    for number, group in enumerate(groups):
        path = folder / f"{PREFIX}-{number + 1:05d}-of-00006.gguf"
        target = outer / SHARED if number == 5 else path
        writer = GGUFWriter(target, "deepseek41")
        if number:
            writer.kv_data[0].clear()
        else:
            add_keys(writer)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 6)
        writer.add_int32("split.tensors.count", total)
        end = 0
        for name, shape in group.items():
            kind = storage_type(name, shape)
            block, size = BLOCKS[kind]
            num_bytes = prod(shape) // block * size
            quant = GGMLQuantizationType[kind]
            stored = (*shape[:-1], shape[-1] // block * size)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), num_bytes, quant)
            end = -(-end // 32) * 32 + num_bytes
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        begin = -(-target.stat().st_size // 32) * 32
        os.truncate(target, begin + end)
        if number == 5:
            path.symlink_to(f"../{SHARED}")
        paths.append(path)
    return paths


def status_kib(field: str) -> int:
    """A memory figure of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@contextmanager
def address_space(extra: int) -> Iterator[None]:
    """Let this process reserve at most `extra` further bytes, also by mapping files."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status_kib("VmSize") * 1024 + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_opens_quickly_and_cheaply(released: list[Path]) -> None:
    open_model(released[0]).close()
    resident = status_kib("VmRSS")
    start = time.perf_counter()
    model = open_model(released[3])
    seconds = time.perf_counter() - start
    assert status_kib("VmRSS") - resident < 100 * 1024
    assert seconds < 5
    assert model.layout == "U" and len(model.tensors) == 1003
    engram = model.config.engram
    assert engram is not None and engram.num_rows == ROWS
    assert [m for row in engram.multipliers for m in row] == list(MULTIPLIERS)
    assert engram.row_offsets[1][0] == 384006168 and engram.bucket_sizes[1][23] == 16000889
    assert model.config.candidate_source_layer == 20 and model.config.num_layers == LAYERS


def test_rows_and_tensors_at_the_far_end(released: list[Path]) -> None:
    with open_model(released[0]) as model:
        info = model.tensors["per_layer_token_embd.weight"]
        assert info.num_bytes == 110_595_290_400 and info.path == str(released[5])
        assert info.num_bytes > 2**36
        row = bytes([0, 60]) + bytes(range(16))  # scale 1.0
        with open(info.path, "r+b") as file:
            file.seek(info.offset + (ROWS - 1) * 144)
            file.write(row * 8)
        assert model.engram is not None
        values = model.engram.gather(np.array([[ROWS - 1, 0]]))
        assert values.shape == (1, 512)
        codebook = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
        assert values[0, :16].tolist() == codebook and values[0, 16:32].unique().tolist() == [-127]
        assert not values[0, 256:].any()
        experts = max(
            (t for t in model.tensors.values() if "_exps" in t.name), key=lambda t: t.offset
        )
        assert experts.offset > 2**34
        raw = model.raw(experts.name)
        assert raw.shape[0] == 384 and raw[383, 0, 0] == 0
        assert SHARED not in Path("/proc/self/maps").read_text()


def test_rows_are_read_where_the_file_could_not_be_mapped(released: list[Path]) -> None:
    with address_space(4 << 30), open_model(released[0]) as model:
        assert model.engram is not None
        rows = np.random.default_rng(1).integers(0, ROWS - 1, (64, 48))
        assert model.engram.gather(rows).shape == (64, 48 * 256)
        with pytest.raises(ModelFileError, match="cannot map"):
            model.raw("blk.0.ffn_up_exps.weight")


def test_without_the_link_the_shared_table_is_found(released: list[Path], tmp_path: Path) -> None:
    folder = released[0].parent.parent / "linked"
    folder.mkdir()
    for path in released[:5]:
        (folder / path.name).symlink_to(path)
    model = open_model(folder / released[2].name)
    assert model.tensors["per_layer_token_embd.weight"].path == str(folder.parent / SHARED)


def test_header_of_the_table_alone(released: list[Path]) -> None:
    header = read_header(str(released[5]))
    assert header.file_size > 110 * 10**9 and len(header.tensors) == 1
    assert header.tensors[0].shape == (ROWS, 256)
