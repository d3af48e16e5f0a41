"""Models of other shapes than the released one: nothing is fixed but the mechanisms.

Each is scored in one piece and again in chunks with single decode steps behind them.
"""

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.score import score_tokens
from memory.gguf.maker import make_random

TOKENS = np.random.default_rng(1).integers(3, 600, 70).tolist()
SHAPES = {
    "no_engram": {"engram_layer_ids": []},
    "engram_in_the_first_layer": {"engram_layer_ids": [0, 3]},
    "bigrams_only": {"engram_max_ngram_size": 2, "engram_n_heads": 8},
    "no_candidates": {"candidate_source_layer_id": -1},
    "ratio_1_only": {
        "compress_ratios": [1, 1, 1, 1],
        "kv_source_layer_ids": [0, 2],
        "index_source_layer_ids": [0, 2, 3],
        "candidate_source_layer_id": -1,
    },
    "ratio_2_only": {
        "compress_ratios": [2, 2, 2, 2],
        "kv_source_layer_ids": [0],
        "index_source_layer_ids": [0, 2],
        "candidate_source_layer_id": -1,
    },
    "window_of_one": {"sliding_window": 1},
    "odd_widths": {"head_dim": 80, "num_attention_heads": 6, "o_groups": 3},
    "wide_rotation": {"head_dim": 96, "qk_rope_head_dim": 32, "index_head_dim": 96},
    "one_selected_row": {"index_topk": 1, "candidate_topk_blocks": 2},
    "more_selected_than_rows": {"index_topk": 512, "candidate_topk_blocks": 200},
    "many_experts": {"n_routed_experts": 384, "num_experts_per_tok": 6},
    "no_clamp": {"swiglu_limit": 0.0},
    "weights_not_normalised": {"norm_topk_prob": False},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_equal_the_whole(tmp_path, four_layer_config, shape):
    path = tmp_path / "model.gguf"
    make_random(four_layer_config(**SHAPES[shape]), path, seed=2, damp=0.3)
    settings = EngineConfig(device="cpu", kv_fake_quant=False)
    whole = score_tokens(path, settings, TOKENS)
    pieces = score_tokens(path, settings, TOKENS, chunk=9, decode_from=31)
    assert np.isfinite(whole).all() and whole.std() > 0.1
    assert np.abs(pieces - whole).max() < 1e-4
