"""Dispatch: sizes, output types, slices, strides and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import ConfigError
from memory.gguf.blocks import SUPPORTED, block_shape, decode, dequantize

SIZES = {
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "MXFP4": (32, 17),
    "NVFP4": (64, 36),
    "BF16": (1, 2),
    "F16": (1, 2),
    "F32": (1, 4),
    "I8": (1, 1),
}
"""Values and bytes of a block, from ggml's block structures."""


def test_every_type_is_supported_with_its_size() -> None:
    assert set(SUPPORTED) == set(SIZES)
    for quant_type, shape in SIZES.items():
        assert block_shape(quant_type) == shape
        assert GGML_QUANT_SIZES[GGMLQuantizationType[quant_type]] == shape


@pytest.mark.parametrize("quant_type", SUPPORTED)
def test_widths_from_256_to_8192(quant_type: str, make_rows: Callable[..., Any]) -> None:
    elements, size = SIZES[quant_type]
    for columns in (256, 512, 768, 1280, 2304, 4096, 5120, 6144, 8192):
        rows = make_rows(quant_type, (2, columns), columns)
        assert rows.shape == (2, columns // elements * size)
        assert dequantize(torch.from_numpy(rows), quant_type).shape == (2, columns)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("quant_type", SUPPORTED)
def test_other_output_types_are_float32_rounded(
    quant_type: str, dtype: torch.dtype, device: str, make_rows: Callable[..., Any]
) -> None:
    rows = torch.from_numpy(make_rows(quant_type, (4, 512), 3)).to(device)
    actual = dequantize(rows, quant_type, dtype)
    assert actual.dtype == dtype
    expected = dequantize(rows, quant_type).to(dtype)
    assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("quant_type", SUPPORTED)
def test_slices_do_not_show(
    quant_type: str, make_rows: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.from_numpy(make_rows(quant_type, (7, 768), 4))
    whole = dequantize(rows, quant_type)
    monkeypatch.setitem(decode._SLICE_ELEMENTS, "cpu", 512)
    assert torch.equal(dequantize(rows, quant_type).view(torch.int32), whole.view(torch.int32))


@pytest.mark.parametrize("quant_type", SUPPORTED)
def test_one_block_at_an_odd_address(quant_type: str, make_rows: Callable[..., Any]) -> None:
    row = torch.from_numpy(make_rows(quant_type, (1, SIZES[quant_type][0]), 5))
    memory = torch.zeros(row.numel() + 1, dtype=torch.uint8)
    memory[1:] = row[0]
    shifted = dequantize(memory[1:], quant_type)
    assert torch.equal(shifted.view(torch.int32), dequantize(row, quant_type)[0].view(torch.int32))


def test_strided_rows(make_rows: Callable[..., Any]) -> None:
    rows = torch.from_numpy(make_rows("Q6_K", (6, 4, 512), 6))
    part = rows[::2, 1:3]
    assert not part.is_contiguous()
    assert torch.equal(dequantize(part, "Q6_K"), dequantize(rows, "Q6_K")[::2, 1:3])


def test_no_rows() -> None:
    assert dequantize(torch.empty(0, 66, dtype=torch.uint8), "IQ2_XXS").shape == (0, 256)


def test_temporaries_stay_bounded(make_rows: Callable[..., Any]) -> None:
    """Decoding many rows needs little more than the result."""
    seen = []

    def counting(blocks: torch.Tensor) -> torch.Tensor:
        seen.append(len(blocks))
        return torch.zeros(len(blocks), 256)

    rows = torch.from_numpy(make_rows("IQ2_XXS", (512, 8192), 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(decode._DECODERS, "IQ2_XXS", counting)
        dequantize(rows, "IQ2_XXS")
    assert sum(seen) == 512 * 32
    assert max(seen) * 256 <= 1 << 15


@pytest.mark.parametrize("quant_type", ["TQ1_0", "Q8_K", "q8_0", "", "MXFP8"])
def test_unknown_type_is_named_with_the_known_ones(quant_type: str) -> None:
    with pytest.raises(ConfigError, match=r"IQ2_XXS.*NVFP4") as caught:
        dequantize(torch.zeros(1, 34, dtype=torch.uint8), quant_type)
    assert repr(quant_type) in str(caught.value)
    with pytest.raises(ConfigError):
        block_shape(quant_type)


@pytest.mark.parametrize(
    "raw",
    [
        torch.zeros(2, 35, dtype=torch.uint8),
        torch.zeros(2, 34, dtype=torch.int8),
        torch.zeros((), dtype=torch.uint8),
    ],
)
def test_rows_that_do_not_fit_are_refused(raw: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="Q8_0 rows must be"):
        dequantize(raw, "Q8_0")
