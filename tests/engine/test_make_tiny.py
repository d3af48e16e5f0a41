import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.make_tiny import make_tiny
from engine.score import score_tokens
from memory.gguf import open_draft, open_model

TOKENS = list(range(3, 40))


def test_writes_a_model_and_draft_that_load_and_equal_seeds_are_equal(tmp_path):
    paths = make_tiny(tmp_path / "tiny.gguf", seed=4)
    assert [p.name for p in paths] == ["tiny.gguf", "tiny-draft.gguf"]
    with open_model(paths[0]) as file, open_draft(paths[1], file.config) as draft:
        assert draft.config.hidden_size == file.config.hidden_size
        types = {info.quant_type for info in file.tensors.values()}
    assert {"IQ2_XXS", "IQ1_M", "IQ4_NL"} <= types
    logits = score_tokens(paths[0], EngineConfig(device="cpu"), TOKENS)
    assert np.isfinite(logits).all() and logits.std() > 0.1
    (tmp_path / "again").mkdir()
    again = make_tiny(tmp_path / "again" / "tiny.gguf", seed=4, draft=False)
    assert again[0].read_bytes() == paths[0].read_bytes()


def test_shards(tmp_path):
    paths = make_tiny(tmp_path / "t.gguf", seed=4, draft=False, split=3)
    assert len(paths) == 3
    whole = make_tiny(tmp_path / "whole.gguf", seed=4, draft=False)[0]
    config = EngineConfig(device="cpu")
    expected = score_tokens(whole, config, TOKENS)
    for path in paths:
        assert np.array_equal(score_tokens(path, config, TOKENS), expected)


def test_unknown_type(tmp_path):
    with pytest.raises(ConfigError, match="nope"):
        make_tiny(tmp_path / "t.gguf", types="all=nope")
    assert list(tmp_path.iterdir()) == []
