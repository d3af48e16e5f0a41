"""Every storage type, from the file to logits: the same numbers as its decoded float weights."""

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.score import score_tokens
from memory.gguf import open_model
from memory.gguf.maker import convert, make_random

TOKENS = np.random.default_rng(8).integers(3, 600, 48).tolist()
CLASSES = [
    *("all", "experts", "shared", "engram", "engram_proj", "output", "embedding"),
    *("attention", "router", "hyper"),
]
TYPES = [
    *("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"),
    *("mxfp4", "nvfp4", "bf16", "f16"),
]


@pytest.mark.parametrize("quant_type", TYPES)
def test_logits_equal_those_of_the_decoded_weights(four_layer_config, tmp_path, quant_type):
    types = ",".join(f"{name}={quant_type}" for name in CLASSES)
    stored, floats = tmp_path / "stored.gguf", tmp_path / "floats.gguf"
    config = four_layer_config(n_routed_experts=4, num_experts_per_tok=2)
    make_random(config, stored, seed=9, damp=0.3, types=types, hf_out=tmp_path / "hf")
    convert(tmp_path / "hf", floats)
    with open_model(stored) as file:
        used = {info.quant_type for info in file.tensors.values()}
    assert used == {quant_type.upper(), "F32"}
    assert stored.stat().st_size < floats.stat().st_size
    config = EngineConfig(device="cpu")
    logits = score_tokens(stored, config, TOKENS, chunk=17)
    assert np.isfinite(logits).all() and logits.std() > 0.05
    assert np.array_equal(logits, score_tokens(floats, config, TOKENS, chunk=17))
