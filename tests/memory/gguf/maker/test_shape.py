"""Fields are found with or without the outer level; a missing one is named."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import ConfigError
from memory.gguf.maker.shape import Config


def test_both_levels(config: dict[str, Any]) -> None:
    nested = Config.from_mapping({**config, "eos_token_id": 7})
    flat = Config.from_mapping({**config["text_config"], "eos_token_id": 7})
    for cfg in (nested, flat):
        assert (cfg.layers, cfg.hidden, cfg.vocab, cfg.streams) == (3, 256, 300, 4)
        assert cfg.engram_layers == (0, 2)
        assert cfg.draft_blocks == 1
        assert cfg.special["eos_token_id"] == 7
    assert flat.special["pad_token_id"] == 2


def test_absent_and_null_fields(config: dict[str, Any]) -> None:
    text = config["text_config"]
    text["hc_mult"] = None
    del text["engram_layer_ids"], text["dspark_block_size"]
    cfg = Config.from_mapping(config)
    assert cfg.streams == 4
    assert cfg.engram_layers == ()
    assert cfg.draft_blocks == 0
    with pytest.raises(ConfigError, match="text_config lacks 'no_such_field'"):
        cfg["no_such_field"]


def test_text_config_that_is_no_object() -> None:
    with pytest.raises(ConfigError, match="text_config is no object"):
        Config.from_mapping({"text_config": [1]})
