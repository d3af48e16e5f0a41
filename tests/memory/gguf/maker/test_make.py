"""Whole files: conversion of the golden checkpoint, random models in every type, shards, errors."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ConfigError, ModelFileError
from memory.gguf import open_draft, open_model
from memory.gguf.blocks import SUPPORTED
from memory.gguf.maker import TINY_TYPES, Vocabulary, convert, make_random, make_tiny
from memory.gguf.maker.shape import Config
from memory.gguf.maker.tensor_table import draft_tensors, main_tensors
from memory.gguf.maker.vocabulary import made_vocabulary

Read = Callable[..., Any]
TYPES = [name.lower() for name in SUPPORTED if name != "I8"]


@pytest.fixture(scope="module")
def golden_weights(golden_dir: Path) -> dict[str, np.ndarray[Any, Any]]:
    weights = load_file(golden_dir / "weights.safetensors")
    return {name: value.float().numpy() for name, value in weights.items()}


@pytest.fixture
def checkpoint(golden_dir: Path, tmp_path: Path) -> Path:
    """A copy of the golden checkpoint that a test may damage."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "weights.safetensors", "engram_tables.safetensors"):
        shutil.copy(golden_dir / name, folder / name)
    return folder


def test_conversion_keeps_every_number(
    golden_gguf: Path, golden_weights: dict[str, Any], contents: Read
) -> None:
    main = contents(golden_gguf)
    draft = contents(golden_gguf.with_name("golden-draft.gguf"))
    assert set(main.types.values()) == set(draft.types.values()) == {"F32"}
    pairs = {
        "token_embd.weight": "embed.weight",
        "output.weight": "head.weight",
        "output_norm.weight": "norm.weight",
        "blk.0.attn_q_a.weight": "layers.0.attn.wq_a.weight",
        "blk.3.attn_q_b.weight": "layers.3.attn.wq_b.weight",
        "blk.7.attn_output_a.weight": "layers.7.attn.wo_a.weight",
        "blk.2.attn_compressor_gate.weight": "layers.2.attn.compressor.wgate.weight",
        "blk.5.attn_compressor_kv.weight": "layers.5.attn.compressor.wkv.weight",
        "blk.4.indexer.attn_k.weight": "layers.4.attn.indexer.wk.weight",
        "blk.7.indexer.proj.weight": "layers.7.attn.indexer.weights_proj.weight",
        "blk.6.exp_probs_b.bias": "layers.6.ffn.gate.bias",
        "blk.1.hc_ffn_fn.weight": "layers.1.hc_ffn_fn",
        "blk.4.engram_kv.weight": "layers.4.engram.wkv.weight",
        "blk.2.ffn_down_shexp.weight": "layers.2.ffn.shared_experts.w2.weight",
    }
    for name, source in pairs.items():
        np.testing.assert_array_equal(main.values[name], golden_weights[source])
    for part, source in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        stacked = main.values[f"blk.3.ffn_{part}_exps.weight"]
        assert len(stacked) == 16
        for expert, value in enumerate(stacked):
            expected = golden_weights[f"layers.3.ffn.experts.{expert}.{source}.weight"]
            np.testing.assert_array_equal(value, expected)
    gate = golden_weights["layers.1.engram.q_weight"] * golden_weights["layers.1.engram.k_weight"]
    np.testing.assert_array_equal(main.values["blk.1.engram_gate.weight"], gate)
    tables = [golden_weights[f"layers.{layer}.engram.embed.weight"] for layer in (1, 4)]
    np.testing.assert_array_equal(
        main.values["per_layer_token_embd.weight"], np.concatenate(tables)
    )
    for name, source in {
        "fc.weight": "mtp.0.main_proj.weight",
        "enc.output_norm.weight": "mtp.0.main_norm.weight",
        "output_norm.weight": "mtp.1.norm.weight",
        "markov_w1.weight": "mtp.1.markov_head.embed.weight",
        "markov_w2.weight": "mtp.1.markov_head.head.weight",
        "conf_proj.weight": "mtp.1.confidence_head.proj.weight",
        "blk.1.attn_kv.weight": "mtp.1.attn.wkv.weight",
    }.items():
        np.testing.assert_array_equal(draft.values[name], golden_weights[source])


def test_conversion_uses_every_checkpoint_tensor_once(
    golden_dir: Path, golden_weights: dict[str, Any]
) -> None:
    cfg = Config.from_mapping(json.loads((golden_dir / "config.json").read_text()))
    table = [*main_tensors(cfg), *draft_tensors(cfg)]
    sources = [source for tensor in table for source in tensor.sources]
    assert sorted(sources) == sorted(golden_weights)


def test_bfloat16_conversion_loses_nothing(
    golden_dir: Path, golden_gguf: Path, tmp_path: Path, contents: Read
) -> None:
    convert(golden_dir, tmp_path / "m.gguf", types="all=bf16")
    exact, stored = contents(golden_gguf), contents(tmp_path / "m.gguf")
    assert stored.types["blk.0.attn_q_a.weight"] == "BF16"
    assert stored.types["blk.0.ffn_gate_inp.weight"] == "F32"
    for name, value in exact.values.items():
        np.testing.assert_array_equal(stored.values[name], value)


@pytest.mark.parametrize("quant_type", TYPES)
def test_random_model_in_every_type(
    quant_type: str, config: dict[str, Any], tmp_path: Path, contents: Read
) -> None:
    types = f"all={quant_type},router={quant_type},hyper={quant_type}"
    out, draft, folder = (tmp_path / name for name in ("m.gguf", "d.gguf", "hf"))
    written = make_random(config, out, seed=3, types=types, draft=draft, hf_out=folder)
    assert written == [out, draft, folder]
    model = contents(out)
    always_float = ("norm.weight", "sinks.weight", "bias", "base.weight", "scale.weight", "gate")
    for name, kind in model.types.items():
        if not any(part in name for part in always_float):
            assert kind == quant_type.upper(), name
    # The folder holds the same numbers as the files, so it converts to the same values in F32.
    again, again_draft = tmp_path / "again.gguf", tmp_path / "again-draft.gguf"
    convert(folder, again, draft=again_draft)
    for first, second in ((out, again), (draft, again_draft)):
        values = contents(first).values
        back = contents(second)
        assert set(back.types.values()) == {"F32"}
        assert set(back.values) == set(values)
        for name, value in values.items():
            np.testing.assert_array_equal(back.values[name], value, err_msg=name)
    width = model.values["blk.0.attn_q_b.weight"].shape[-1]
    assert model.values["blk.0.attn_q_b.weight"].std() * width**0.5 == pytest.approx(1, abs=0.35)
    assert model.values["token_embd.weight"].std() == pytest.approx(1, abs=0.35)


def test_conversion_with_a_vocabulary_of_its_own(
    golden_dir: Path, tmp_path: Path, contents: Read
) -> None:
    made = made_vocabulary(320)
    renamed = [
        f"<{i}>" if kind == 1 and i > 258 else t
        for i, (t, kind) in enumerate(zip(made.tokens, made.token_types, strict=True))
    ]
    own = Vocabulary(renamed, made.token_types, ["a b", "c d"])
    convert(golden_dir, tmp_path / "m.gguf", vocabulary=own)
    keys = contents(tmp_path / "m.gguf").keys
    assert keys["tokenizer.ggml.tokens"] == renamed
    assert keys["tokenizer.ggml.merges"] == ["a b", "c d"]
    short = Vocabulary(renamed[:-1], made.token_types, [])
    with pytest.raises(ConfigError, match="319 tokens and 320 token types for vocab_size 320"):
        convert(golden_dir, tmp_path / "m.gguf", vocabulary=short)


def test_conversion_writes_the_numbers_it_stored(
    golden_dir: Path, tmp_path: Path, contents: Read
) -> None:
    out, folder, again = (tmp_path / name for name in ("m.gguf", "hf", "again.gguf"))
    assert convert(golden_dir, out, types="all=q8_0", hf_out=folder) == [out, folder]
    convert(folder, again)
    stored, decoded = contents(out), contents(again)
    assert stored.types["output.weight"] == "Q8_0"
    for name, value in stored.values.items():
        np.testing.assert_array_equal(decoded.values[name], value)


def test_written_model_opens(config: dict[str, Any], tmp_path: Path) -> None:
    make_random(config, tmp_path / "m.gguf", types=TINY_TYPES, draft=tmp_path / "d.gguf")
    model, draft = open_model(tmp_path / "m.gguf"), open_draft(tmp_path / "d.gguf")
    assert model.config.num_layers == 3
    assert model.config.engram is not None
    assert model.config.engram.layers == (0, 2)
    assert draft.config.target_layers == (1, 2)


@pytest.mark.parametrize("split", [2, 3, 5])
def test_shards(split: int, config: dict[str, Any], tmp_path: Path, contents: Read) -> None:
    whole = make_random(config, tmp_path / "whole.gguf", types=TINY_TYPES)
    shards = make_random(config, tmp_path / "part.gguf", types=TINY_TYPES, split=split)
    assert [path.name for path in shards] == [
        f"part-{i + 1:05d}-of-{split:05d}.gguf" for i in range(split)
    ]
    expected, found = contents(*whole), contents(*shards)
    assert found.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        np.testing.assert_array_equal(found.values[name], value)
    assert list(contents(shards[-1]).values) == ["per_layer_token_embd.weight"]
    for number, path in enumerate(shards):
        keys = contents(path).keys
        assert keys["split.no"] == number
        assert keys["split.count"] == split
        assert keys["split.tensors.count"] == len(expected.values)
        if number:
            assert not any(key.startswith(("general.", "deepseek41.")) for key in keys)
    assert open_model(shards[0]).config == open_model(whole[0]).config


def test_equal_seeds_give_equal_bytes(config: dict[str, Any], tmp_path: Path) -> None:
    files = []
    for folder, seed in (("a", 7), ("b", 7), ("c", 8)):
        (tmp_path / folder).mkdir()
        out = tmp_path / folder / "m.gguf"
        make_random(config, out, seed=seed, types=TINY_TYPES)
        files.append(out.read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


def test_damp_shrinks_what_is_written_into_the_streams(
    config: dict[str, Any], tmp_path: Path, contents: Read
) -> None:
    make_random(config, tmp_path / "a.gguf", damp=1.0)
    make_random(config, tmp_path / "b.gguf", damp=0.25)
    full, damped = contents(tmp_path / "a.gguf").values, contents(tmp_path / "b.gguf").values
    for name in ("blk.1.attn_output_b.weight", "blk.0.ffn_down_exps.weight"):
        np.testing.assert_allclose(damped[name], full[name] / 4, rtol=1e-6)
    np.testing.assert_array_equal(damped["output.weight"], full["output.weight"])


def test_tiny_model_mixes_types(tmp_path: Path, contents: Read) -> None:
    out = tmp_path / "tiny.gguf"
    written = make_tiny(out, seed=4)
    assert written == [out, tmp_path / "tiny-draft.gguf"]
    types = contents(out).types
    assert [types[f"blk.{layer}.ffn_up_exps.weight"] for layer in (0, 1, 2)] == [
        "IQ2_XXS",
        "IQ1_M",
        "IQ2_XXS",
    ]
    assert types["per_layer_token_embd.weight"] == "IQ4_NL"
    assert {"IQ2_XS", "Q8_0", "Q6_K", "Q4_K", "F32"} < set(types.values())
    assert open_draft(written[1]).config.hidden_size == open_model(out).config.hidden_size
    assert make_tiny(tmp_path / "alone.gguf", draft=False) == [tmp_path / "alone.gguf"]
    assert not (tmp_path / "alone-draft.gguf").exists()


def test_configuration_from_a_file(config: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    make_random(path, tmp_path / "m.gguf", seed=1)
    first = (tmp_path / "m.gguf").read_bytes()
    make_random(config, tmp_path / "m.gguf", seed=1)
    assert (tmp_path / "m.gguf").read_bytes() == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": "all=q9_9"}, "unknown storage type 'q9_9'; known: .*iq2_xxs"),
        ({"types": "wheels=q8_0"}, "'wheels=q8_0' is not CLASS=TYPE; classes: .*embedding"),
        ({"types": "experts.left=q8_0"}, "not CLASS=TYPE"),
        ({"types": "all"}, "not CLASS=TYPE"),
        ({"split": 0}, "split 0: must be 1"),
        ({"split": 1}, ""),
        ({"split": 1000}, "split 1000: needs"),
        ({"seed": -1}, "seed -1"),
        ({"damp": 0.0}, "damp 0.0"),
        ({"damp": float("nan")}, "damp nan"),
    ],
)
def test_wrong_options_write_nothing(
    options: dict[str, Any], message: str, config: dict[str, Any], tmp_path: Path
) -> None:
    if not message:
        make_random(config, tmp_path / "m.gguf", **options)
        return
    with pytest.raises(ConfigError, match=message):
        make_random(config, tmp_path / "m.gguf", **options)
    assert list(tmp_path.iterdir()) == []


def test_draft_needs_stages_and_a_name_of_its_own(config: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    with pytest.raises(ConfigError, match="is also the model's file"):
        make_random(config, out, draft=out)
    config["text_config"]["dspark_block_size"] = 0
    with pytest.raises(ConfigError, match="no DSpark stages"):
        make_random(config, out, draft=tmp_path / "d.gguf")


def test_row_that_no_block_fits(config: dict[str, Any], tmp_path: Path) -> None:
    config["text_config"]["moe_intermediate_size"] = 96
    with pytest.raises(ConfigError, match=r"blk\.0\.ffn_down_exps\.weight: row length 96 .* 256"):
        make_random(config, tmp_path / "m.gguf", types="experts=iq2_xxs")


def test_configuration_without_a_field(config: dict[str, Any], tmp_path: Path) -> None:
    del config["text_config"]["o_groups"]
    with pytest.raises(ConfigError, match="o_groups"):
        make_random(config, tmp_path / "m.gguf")


@pytest.mark.parametrize("text", ["", "{", "[]", "\ufeff"])
def test_unreadable_configuration(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json: "):
        make_random(tmp_path / "config.json", tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match=r"absent\.json: cannot be read"):
        make_random(tmp_path / "absent.json", tmp_path / "m.gguf")


@pytest.mark.parametrize("quant_type", ["iq2_xxs", "q4_k", "nvfp4", "iq4_nl"])
def test_conversion_to_a_type_without_encoder(
    quant_type: str, golden_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"row length|no encoder for {quant_type.upper()}"):
        convert(golden_dir, tmp_path / "m.gguf", types=f"all={quant_type}")
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_without_a_tensor(checkpoint: Path, tmp_path: Path) -> None:
    weights = load_file(checkpoint / "weights.safetensors")
    del weights["layers.3.ffn.experts.5.w2.weight"]
    save_file(weights, checkpoint / "weights.safetensors")
    with pytest.raises(ModelFileError, match=r"tensor layers\.3\.ffn\.experts\.5\.w2\.weight"):
        convert(checkpoint, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_checkpoint_with_a_tensor_of_another_size(checkpoint: Path, tmp_path: Path) -> None:
    weights = load_file(checkpoint / "weights.safetensors")
    weights["layers.0.attn.wq_a.weight"] = torch.zeros(63, 96)
    save_file(weights, checkpoint / "weights.safetensors")
    with pytest.raises(ModelFileError, match=r"wq_a\.weight: has shape \[63, 96\], needed \[64, 9"):
        convert(checkpoint, tmp_path / "m.gguf")


def test_checkpoint_with_a_token_map_that_does_not_fit(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "engram_tables.safetensors"
    tables = load_file(path)
    save_file({**tables, "token_map": tables["token_map"][:-1].clone()}, path)
    with pytest.raises(ModelFileError, match="tensor token_map: does not fit vocab_size"):
        convert(checkpoint, tmp_path / "m.gguf")
    path.unlink()
    with pytest.raises(ModelFileError, match="tensor token_map: missing"):
        convert(checkpoint, tmp_path / "m.gguf")


def test_no_folder(config: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "absent" / "m.gguf"
    with pytest.raises(ModelFileError, match=r"m\.gguf: cannot be written: No such file"):
        make_random(config, out)


def test_full_disk_leaves_neither_model_nor_draft(config: dict[str, Any], tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk; the third shard reaches it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        with pytest.raises(ModelFileError, match="cannot be written: ") as caught:
            make_random(config, tmp_path / "m.gguf", types=TINY_TYPES, draft=tmp_path / "d.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
