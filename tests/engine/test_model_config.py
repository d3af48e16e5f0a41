from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from engine.model_config import BlockConfig, DraftConfig, EngramConfig, ModelConfig


def facts(kind: type, **given: Any) -> dict[str, Any]:
    """Keyword arguments for a dataclass: those given, any value of the right type for others."""
    plain = {int: 8, float: 1.0, bool: True}
    hints = typing.get_type_hints(kind)
    return {
        f.name: given.get(f.name, plain.get(hints[f.name], (1,))) for f in dataclasses.fields(kind)
    }


def engram(**given: Any) -> EngramConfig:
    return EngramConfig(**facts(EngramConfig, **given))


def backbone(**given: Any) -> ModelConfig:
    return ModelConfig(**facts(ModelConfig, engram=None, **given))


def test_sources_of_shared_layers() -> None:
    config = backbone(num_layers=10, kv_source_layers=(2, 4, 7), index_source_layers=(2, 7))
    assert [config.kv_source(layer) for layer in range(2, 10)] == [2, 2, 4, 4, 4, 7, 7, 7]
    assert [config.index_source(layer) for layer in range(2, 10)] == [2, 2, 2, 2, 2, 7, 7, 7]


def test_layer_before_every_source_has_none() -> None:
    config = backbone(kv_source_layers=(2,), index_source_layers=(3,))
    with pytest.raises(ValueError):
        config.kv_source(1)
    with pytest.raises(ValueError):
        config.index_source(2)


def test_engram_widths_and_rows() -> None:
    config = engram(
        ngram_size=4,
        num_heads=2,
        row_dim=5,
        bucket_sizes=((11, 13, 17, 19, 23, 29), (31, 37, 41, 43, 47, 53)),
        row_offsets=((0, 11, 24, 41, 60, 83), (112, 143, 180, 221, 264, 311)),
    )
    assert config.num_columns == 6
    assert config.width == 30
    assert config.num_rows == 364


def test_rows_beyond_32_bits_stay_exact() -> None:
    config = engram(bucket_sizes=((7,), (2**40 + 15,)), row_offsets=((2**41,), (3,)))
    assert config.num_rows == 2**41 + 7


def test_rows_need_one_offset_per_bucket() -> None:
    config = engram(bucket_sizes=((7, 11),), row_offsets=((0,),))
    with pytest.raises(ValueError):
        _ = config.num_rows


@pytest.mark.parametrize("kind", [BlockConfig, ModelConfig, DraftConfig, EngramConfig])
def test_facts_are_frozen_and_complete(kind: type) -> None:
    """No fact has a default: a missing key of a file cannot become a silent guess."""
    for f in dataclasses.fields(kind):
        assert f.default is f.default_factory is dataclasses.MISSING, f.name
    config = kind(**facts(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(kind)[0].name, 1)
    with pytest.raises(TypeError):
        kind()
