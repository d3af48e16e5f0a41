from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memory.gguf import open_model
from memory.gguf.classes import class_of, class_totals


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("per_layer_token_embd.weight", "engram table"),
        ("blk.1.engram_embd.weight", "engram table"),
        ("blk.1.engram_embd_scale.weight", "engram table"),
        ("blk.14.engram_kv.weight", "engram projection"),
        ("blk.14.engram_q_norm.weight", "engram projection"),
        ("blk.0.ffn_down_exps.weight", "experts"),
        ("blk.0.ffn_down_shexp.weight", "shared expert"),
        ("blk.0.ffn_gate_inp.weight", "router"),
        ("blk.0.exp_probs_b.bias", "router"),
        ("blk.0.attn_q_a.weight", "attention"),
        ("blk.0.attn_q_a_norm.weight", "norms and sinks"),
        ("blk.0.attn_sinks.weight", "norms and sinks"),
        ("enc.output_norm.weight", "norms and sinks"),
        ("blk.0.attn_compressor_kv.weight", "compressor"),
        ("blk.0.indexer.proj.weight", "indexer"),
        ("blk.0.indexer_compressor_kv.weight", "indexer"),
        ("blk.0.hc_attn_fn.weight", "hyper-connections"),
        ("token_embd.weight", "embedding"),
        ("output.weight", "output"),
        ("markov_w1.weight", "draft heads"),
        ("v.patch_embd.weight", "other"),
    ],
)
def test_class_of_a_name(name: str, label: str) -> None:
    assert class_of(name) == label


def test_totals(tiny: Any, tmp_path: Path) -> None:
    tiny.put("blk.0.ffn_up_exps.weight", tiny.values["blk.0.ffn_up_exps.weight"], "F16")
    model = open_model(tiny.write(tmp_path / "m.gguf"))
    totals = class_totals(model.tensors.values())
    experts = [t for t in totals if t.label == "experts"]
    assert [(t.quant_type, t.count) for t in experts] == [("Q8_0", 14), ("F16", 1)]
    assert experts[0].weights == 14 * 4 * 64 * 32 and experts[0].num_bytes == 14 * 8192 // 32 * 34
    assert experts[1].num_bytes == 2 * 8192
    assert totals[0].label == "engram table"
    assert sum(t.count for t in totals) == len(tiny.tensors)
