"""Metadata has the names, types and values that readers of the format insist on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from gguf import GGUFValueType as VT

from memory.gguf.maker import make_random

U32, I32, F32, U64 = VT.UINT32, VT.INT32, VT.FLOAT32, VT.UINT64


@pytest.fixture
def files(config: dict[str, Any], tmp_path: Path) -> tuple[GGUFReader, GGUFReader]:
    make_random(config, tmp_path / "m.gguf", draft=tmp_path / "d.gguf")
    return GGUFReader(tmp_path / "m.gguf"), GGUFReader(tmp_path / "d.gguf")


def kind_and_value(reader: GGUFReader, name: str) -> tuple[VT, Any]:
    """Type of a scalar or of the elements of an array, and the value."""
    field = reader.fields[name]
    return field.types[-1], field.contents()


def test_model(files: tuple[GGUFReader, GGUFReader]) -> None:
    model, _ = files
    expected: dict[str, tuple[VT, Any]] = {
        "general.architecture": (VT.STRING, "deepseek41"),
        "deepseek41.block_count": (U32, 3),
        "deepseek41.embedding_length": (U32, 256),
        "deepseek41.attention.head_count_kv": (U32, 1),
        "deepseek41.attention.layer_norm_rms_epsilon": (F32, pytest.approx(1e-20, rel=1e-6)),
        "deepseek41.attention.compress_ratios": (I32, [0, 2, 1, 0]),
        "deepseek41.attention.kv_source_layers": (I32, [1, 2]),
        "deepseek41.attention.indexer.source_layers": (I32, [1, 2]),
        "deepseek41.attention.indexer.candidate_source_layer": (I32, 2),
        "deepseek41.attention.indexer.candidate_top_k_blocks": (U32, 8),
        "deepseek41.attention.indexer.candidate_block_size": (U32, 4),
        "deepseek41.rope.scaling.type": (VT.STRING, "yarn"),
        "deepseek41.rope.scaling.factor": (F32, 16.0),
        "deepseek41.expert_gating_func": (U32, 4),
        "deepseek41.expert_weights_norm": (VT.BOOL, True),
        "deepseek41.swiglu_clamp_exp": (F32, [3.0] * 3),
        "deepseek41.hash_layer_count": (U32, 0),
        "deepseek41.embedding_length_per_layer_input": (U32, 256),
        "deepseek41.ple.layers": (I32, [0, 2]),
        "deepseek41.ple.ngram_size": (U32, 3),
        "deepseek41.ple.heads_per_ngram": (U32, 1),
        "deepseek41.ple.head_vocab_sizes": (U64, [53, 59, 61, 67]),
        "deepseek41.ple.head_offsets": (U64, [0, 53, 112, 173]),
        "deepseek41.engram.pad_token_id": (U32, 2),
        "tokenizer.ggml.model": (VT.STRING, "gpt2"),
        "tokenizer.ggml.bos_token_id": (U32, 0),
        "tokenizer.ggml.eos_token_id": (U32, 1),
        "tokenizer.ggml.add_bos_token": (VT.BOOL, True),
    }
    for name, value in expected.items():
        assert kind_and_value(model, name) == value, name
    kind, multipliers = kind_and_value(model, "deepseek41.ple.layer_multipliers")
    assert kind is U64
    assert len(multipliers) == 6
    assert all(value % 2 == 1 and value > 2**32 for value in multipliers)
    kind, token_map = kind_and_value(model, "deepseek41.engram.token_map")
    assert kind is I32
    assert (len(token_map), max(token_map)) == (300, 249)


def test_draft(files: tuple[GGUFReader, GGUFReader]) -> None:
    _, draft = files
    expected: dict[str, tuple[VT, Any]] = {
        "general.architecture": (VT.STRING, "dflash"),
        "dflash.block_count": (U32, 1),
        "dflash.expert_count": (U32, 3),
        "dflash.expert_used_count": (U32, 2),
        "dflash.attention.compress_ratios": (I32, [0]),
        "dflash.block_size": (U32, 5),
        "dflash.target_layers": (I32, [1, 2]),
        "dflash.hyper_connection.single_pass": (VT.BOOL, True),
        "tokenizer.ggml.mask_token_id": (U32, 299),
    }
    for name, value in expected.items():
        assert kind_and_value(draft, name) == value, name


@pytest.mark.parametrize(
    ("change", "absent"),
    [
        ({"candidate_source_layer_id": -1}, "indexer.candidate"),
        ({"engram_layer_ids": []}, ".ple."),
    ],
)
def test_optional_mechanisms_leave_no_keys(
    change: dict[str, Any], absent: str, config: dict[str, Any], tmp_path: Path
) -> None:
    config["text_config"].update(change)
    make_random(config, tmp_path / "m.gguf")
    assert not any(absent in name for name in GGUFReader(tmp_path / "m.gguf").fields)
