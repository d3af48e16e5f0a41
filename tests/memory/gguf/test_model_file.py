from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import InternalError
from memory.gguf import DraftFile, ModelFile, open_draft, open_model


def test_config_states_what_was_written(tiny: Any, tmp_path: Path) -> None:
    config = open_model(tiny.write(tmp_path / "m.gguf")).config
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (5, 32, 40)
    assert (config.num_heads, config.head_dim, config.rope_dim) == (4, 32, 16)
    assert (config.q_lora_rank, config.o_groups, config.o_lora_rank) == (64, 2, 32)
    assert (config.window, config.context_length, config.rope_theta) == (8, 4096, 10000.0)
    assert config.norm_eps == np.float32(1e-20) and config.hc_eps == np.float32(1e-6)
    assert (config.num_experts, config.num_experts_used, config.intermediate_size) == (4, 2, 64)
    assert (config.expert_weights_scale, config.expert_weights_norm) == (1.5, True)
    assert config.swiglu_limits == (3.0,) * 5 and config.swiglu_limits_shared == (4.0,) * 5
    assert (config.hc_streams, config.hc_sinkhorn_iters) == (2, 20)
    assert config.compress_ratios == (0, 2, 2, 1, 1) and config.compress_rope_theta == 160000.0
    assert config.kv_source_layers == (1, 3) and config.index_source_layers == (1, 3, 4)
    assert (config.index_num_heads, config.index_head_dim, config.index_top_k) == (2, 32, 8)
    assert config.candidate_source_layer == 3
    assert (config.candidate_top_k_blocks, config.candidate_block_size) == (4, 4)
    assert (config.yarn_factor, config.yarn_original_context) == (16.0, 128)
    assert (config.yarn_beta_fast, config.yarn_beta_slow) == (32.0, 1.0)
    engram = config.engram
    assert engram is not None
    assert (engram.layers, engram.ngram_size, engram.num_heads, engram.row_dim) == (
        (0, 2),
        3,
        2,
        32,
    )
    assert engram.bucket_sizes == ((101, 103, 107, 109), (113, 127, 131, 137))
    assert engram.row_offsets == ((0, 101, 204, 311), (420, 533, 660, 791))
    assert engram.num_rows == 928 and engram.pad_token_id == 2
    assert engram.token_map == tuple(i % 25 for i in range(40))
    stored = tiny.keys["deepseek41.ple.layer_multipliers"][1]
    assert [m for row in engram.multipliers for m in row] == stored


def test_every_tensor_decodes_to_what_was_stored(tiny: Any, tmp_path: Path) -> None:
    with open_model(tiny.write(tmp_path / "m.gguf")) as model:
        assert set(model.tensors) == set(tiny.tensors)
        for name, info in model.tensors.items():
            kind, shape, data = tiny.tensors[name]
            assert info.shape == shape and info.quant_type == kind and info.name == name
            raw = model.raw(name)
            assert raw.dtype == torch.uint8 and raw.shape == (*shape[:-1], info.row_bytes)
            assert raw.numpy().tobytes() == data
            value = model.decode(name)
            assert value.dtype == torch.float32 and value.is_contiguous()
            np.testing.assert_array_equal(value.numpy(), tiny.values[name])


def test_decode_in_pieces_and_in_other_types(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.gguf.model_file.PIECE_BYTES", 100)
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    name = "blk.2.ffn_down_exps.weight"
    np.testing.assert_array_equal(model.decode(name).numpy(), tiny.values[name])
    half = model.decode(name, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, torch.from_numpy(tiny.values[name]).bfloat16())


def test_small_tensors_may_have_any_float_type(tiny: Any, tmp_path: Path) -> None:
    for kind in ("F32", "F16", "BF16"):
        for name in ("blk.1.attn_norm.weight", "blk.3.attn_sinks.weight", "blk.0.exp_probs_b.bias"):
            tiny.put(name, tiny.values[name], kind)
        model = open_model(tiny.write(tmp_path / f"{kind}.gguf"))
        for name in ("blk.1.attn_norm.weight", "blk.3.attn_sinks.weight", "blk.0.exp_probs_b.bias"):
            assert model.tensors[name].quant_type == kind
            np.testing.assert_array_equal(model.decode(name).numpy(), tiny.values[name])


def test_raw_is_a_map_that_outlives_the_file_object(tiny: Any, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    model = open_model(path)
    first, second = model.raw("output.weight"), model.raw("output.weight")
    assert first.data_ptr() == second.data_ptr()
    with open(path, "r+b") as file:  # a shared map shows what the file holds, a copy would not
        file.seek(model.tensors["output.weight"].offset)
        file.write(b"\x5a")
    assert first.flatten()[0] == 0x5A
    model.close()
    del model, second
    gc.collect()
    assert first.flatten()[0] == 0x5A
    assert bytes(first.flatten()[1:8].tolist()) == tiny.tensors["output.weight"][2][1:8]


def test_engram_table_is_left_out_of_the_map(tiny: Any, tmp_path: Path) -> None:
    paths = tiny.write_split(tmp_path)
    model = open_model(paths[0])
    for name in model.tensors:
        if name != "per_layer_token_embd.weight":
            model.raw(name)
    assert paths[-1].name not in Path("/proc/self/maps").read_text()
    assert paths[0].name in Path("/proc/self/maps").read_text()
    table = model.engram
    assert table is not None and table.num_rows == 928
    rows = np.array([[0, 927, 5], [5, 419, 420]])
    expected = tiny.values["per_layer_token_embd.weight"][rows].reshape(2, -1)
    np.testing.assert_array_equal(table.gather(rows).numpy(), expected)
    assert paths[-1].name not in Path("/proc/self/maps").read_text()


def test_closed_file_and_unknown_name_are_internal_errors(tiny: Any, tmp_path: Path) -> None:
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    with pytest.raises(InternalError, match=r"no tensor blk\.9"):
        model.decode("blk.9.attn_norm.weight")
    model.close()
    with pytest.raises(InternalError, match="after close"):
        model.raw("output.weight")
    with pytest.raises(InternalError, match="after close"):
        _ = model.engram


def test_file_descriptors_are_not_leaked(tiny: Any, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with open_model(path) as model:
            model.decode("output.weight")
            assert model.engram is not None
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_grouped_output_projection_may_be_three_dimensional(tiny: Any, tmp_path: Path) -> None:
    kind, shape, data = tiny.tensors["blk.1.attn_output_a.weight"]
    tiny.store("blk.1.attn_output_a.weight", kind, (2, 32, shape[1]), data)
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    assert model.tensors["blk.1.attn_output_a.weight"].shape == shape
    value = model.decode("blk.1.attn_output_a.weight").numpy()
    np.testing.assert_array_equal(value, tiny.values["blk.1.attn_output_a.weight"])


def test_unknown_tensors_and_keys_are_ignored(tiny: Any, tmp_path: Path) -> None:
    tiny.set("foreign.list", "[str]", ["a", "b"]).set("deepseek41.novel", "f64", 2.0)
    tiny.put("blk.0.exp_probs_b_vl.bias", np.ones(4))
    tiny.store("blk.77.mystery.weight", "I64", (2,), bytes(16))
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    assert "blk.0.exp_probs_b_vl.bias" not in model.tensors
    assert "blk.77.mystery.weight" not in model.tensors
    assert model.metadata["foreign.list"] == ["a", "b"]


def test_metadata_are_python_values_and_arrays(tiny: Any, tmp_path: Path) -> None:
    metadata = open_model(tiny.write(tmp_path / "m.gguf")).metadata
    assert metadata["general.name"] == "Tiny"
    assert metadata["deepseek41.expert_weights_norm"] is True
    assert metadata["tokenizer.ggml.tokens"][7] == "tok7"  # type: ignore[index]
    kinds = metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, np.ndarray) and kinds.dtype == np.int32 and len(kinds) == 40
    with pytest.raises(TypeError):
        metadata["general.name"] = "x"  # type: ignore[index]


def test_summary_adds_up(tiny: Any, tmp_path: Path) -> None:
    summary = open_model(tiny.write(tmp_path / "m.gguf")).summary
    assert sum(total.count for total in summary) == len(tiny.tensors)
    assert sum(total.num_bytes for total in summary) == sum(
        len(data) for _, _, data in tiny.tensors.values()
    )


def test_draft_opens_with_and_without_its_backbone(
    tiny: Any, tiny_draft: Any, tmp_path: Path
) -> None:
    path = tiny_draft.write(tmp_path / "d.gguf")
    backbone = open_model(tiny.write(tmp_path / "m.gguf")).config
    for config in (open_draft(path).config, open_draft(path, backbone).config):
        assert (config.num_layers, config.block_size, config.markov_rank) == (2, 5, 32)
        assert config.target_layers == (3, 4) and config.noise_token_id == 39
        assert config.num_experts == 3 and config.has_confidence and config.vocab_size == 40
    draft = open_draft(path)
    assert isinstance(draft, DraftFile) and not isinstance(draft, ModelFile)
    for name in draft.tensors:
        np.testing.assert_array_equal(draft.decode(name).numpy(), tiny_draft.values[name])


def test_draft_without_confidence_head(tiny_draft: Any, tmp_path: Path) -> None:
    tiny_draft.remove("conf_proj.weight")
    draft = open_draft(tiny_draft.write(tmp_path / "d.gguf"))
    assert not draft.config.has_confidence and "conf_proj.weight" not in draft.tensors


def test_full_vocabulary_opens_quickly(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    vocab = 129280
    tiny.set("vocab_size", "u32", vocab)
    tiny.set("tokenizer.ggml.tokens", "[str]", [f"Ġtoken{i}" for i in range(vocab)])
    tiny.set("tokenizer.ggml.token_type", "[i32]", [1] * vocab)
    tiny.set("tokenizer.ggml.merges", "[str]", [f"Ġto ken{i}" for i in range(127700)])
    tiny.set("engram.token_map", "[i32]", [i % 25 for i in range(vocab)])
    for name in ("token_embd.weight", "output.weight"):
        tiny.store(name, "Q8_0", (vocab, 32), bytes(vocab * 34))
    path = tiny.write(tmp_path / "m.gguf")
    start = time.perf_counter()
    model = open_model(path)
    assert time.perf_counter() - start < 5
    assert len(model.metadata["tokenizer.ggml.tokens"]) == vocab  # type: ignore[arg-type]
    tiny.set("tokenizer.ggml.eos_token_id", "u32", vocab)
    path = tiny.write(tmp_path / "bad.gguf")
    start = time.perf_counter()
    assert "eos_token_id" in error_of(lambda: open_model(path)).field
    assert time.perf_counter() - start < 5
