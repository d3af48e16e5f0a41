"""Choice of storage types, encoding, and random blocks of the wanted size."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QT

from engine.errors import ConfigError
from memory.gguf.maker.storage import (
    STORABLE,
    TypePlan,
    decode,
    encode,
    has_random_blocks,
    random_blocks,
    random_floats,
    random_std,
    row_bytes,
)
from memory.gguf.maker.tensor import Tensor

BLOCK_TYPES = [name for name in STORABLE if has_random_blocks(QT[name])]


def tensor(category: str, layer: int = 0, shape: tuple[int, ...] = (64, 512)) -> Tensor:
    return Tensor("blk.0.x.weight", shape, category, ("x",), layer=layer)


def test_rules_from_special_to_general() -> None:
    plan = TypePlan("all=q8_0, experts=iq2_xxs+iq1_m ,experts.down=IQ2_XS,engram=iq4_nl", "f32")
    assert plan.choose(tensor("attention")) is QT.Q8_0
    assert plan.choose(tensor("experts.up", layer=4)) is QT.IQ2_XXS
    assert plan.choose(tensor("experts.gate", layer=5)) is QT.IQ1_M
    assert plan.choose(tensor("experts.down", layer=5)) is QT.IQ2_XS
    assert plan.choose(tensor("engram")) is QT.IQ4_NL
    for category in ("router", "hyper", "norm", "sinks", "bias", "engram_gate"):
        assert plan.choose(tensor(category)) is QT.F32
    assert TypePlan("router=q8_0", "f16").choose(tensor("router")) is QT.Q8_0
    assert TypePlan("", "f16").choose(tensor("shared")) is QT.F16


@pytest.mark.parametrize("text", ["all=tq1_0", "all=i8", "all=q8_k", "all=", "=q8_0", "norm=f16"])
def test_rules_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^types: "):
        TypePlan(text, "f32")


@pytest.mark.parametrize("quant_type", BLOCK_TYPES)
def test_random_blocks_have_the_wanted_deviation(quant_type: str) -> None:
    item, kind = tensor("experts.up", shape=(4, 64, 512)), QT[quant_type]
    stored = random_blocks(item, kind, 0.05, np.random.default_rng(5))
    assert stored.shape == (4, 64, row_bytes(item, kind))
    values = decode(item, stored, kind)
    assert values.shape == item.shape
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.05, rel=0.35)
    assert abs(values.mean()) < 0.01
    assert len(np.unique(stored, axis=0)) > 1


def test_block_types_are_all_but_plain_numbers() -> None:
    assert set(STORABLE) - set(BLOCK_TYPES) == {"F32", "F16", "BF16"}


@pytest.mark.parametrize(
    ("quant_type", "largest_error"),
    [("F32", 0), ("F16", 2e-3), ("BF16", 2e-2), ("Q8_0", 2e-2), ("Q4_0", 0.6), ("MXFP4", 1.1)],
)
def test_encode_and_decode(quant_type: str, largest_error: float) -> None:
    item = tensor("attention")
    value = np.random.default_rng(6).standard_normal(item.shape, dtype=np.float32)
    stored = encode(item, value, QT[quant_type])
    assert stored.dtype == np.uint8
    error = np.abs(decode(item, stored, QT[quant_type]) - value).max()
    assert error <= largest_error


def test_type_without_encoder() -> None:
    with pytest.raises(ConfigError, match=r"blk\.0\.x\.weight: there is no encoder for IQ2_XXS"):
        encode(tensor("attention"), np.zeros((64, 512), np.float32), QT.IQ2_XXS)


def test_row_that_is_no_multiple_of_the_block() -> None:
    item = tensor("attention", shape=(2, 96))
    assert row_bytes(item, QT.Q8_0) == 102
    with pytest.raises(ConfigError, match="row length 96 is not a multiple of 256"):
        row_bytes(item, QT.Q4_K)


def test_random_floats_by_category() -> None:
    rng = np.random.default_rng(7)
    assert random_floats(tensor("norm"), rng).mean() == pytest.approx(1, abs=0.01)
    assert random_floats(tensor("hyper_scale"), rng).min() >= 0.6
    matrix = random_floats(tensor("attention"), rng)
    assert matrix.std() == pytest.approx(512**-0.5, rel=0.02)
    assert random_std(tensor("engram")) == 1
