"""Random stored blocks of every type, and the decoder of the gguf package to compare with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from memory.gguf.blocks import dequantize

F16_FIELDS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Byte positions of float16 numbers, which must not be random bits: those may be NaN."""

PLAIN = {"F32": np.float32, "F16": np.float16}

RandomRows = Callable[..., NDArray[np.uint8]]


def random_rows(quant_type: str, shape: tuple[int, ...], seed: int) -> NDArray[np.uint8]:
    """Random stored rows with finite scales: uint8 [*shape[:-1], row bytes]."""
    rng = np.random.default_rng(seed)
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[quant_type]]
    count = int(np.prod(shape)) // elements
    if quant_type in PLAIN:
        blocks = rng.standard_normal(count).astype(PLAIN[quant_type]).view(np.uint8)
        return blocks.reshape(*shape[:-1], -1)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    scales = rng.standard_normal((2, count)).astype(np.float16)
    scales[0, 5::17] = 0
    for position, scale in zip(F16_FIELDS.get(quant_type, ()), scales, strict=False):
        blocks[:, position : position + 2] = scale[:, None].view(np.uint8)
    if quant_type == "IQ1_M":  # top nibbles of four words
        for word in range(4):
            nibble = (scales[0].view(np.uint16) >> (4 * word)) & 15
            blocks[:, 49 + 2 * word] = (blocks[:, 49 + 2 * word] & 15) | (nibble << 4)
    if quant_type == "MXFP4":  # the largest exponents overflow float32
        blocks[:, 0] = np.minimum(blocks[:, 0], 251)
    if quant_type == "BF16":  # no exponent of all ones
        blocks[:, 1] &= 0xBF
    return blocks.reshape(*shape[:-1], -1)


@pytest.fixture(scope="session")
def make_rows() -> RandomRows:
    """make_rows(type, shape, seed) -> random stored rows."""
    return random_rows


def oracle(rows: NDArray[np.uint8], quant_type: str) -> NDArray[np.float32]:
    return quants.dequantize(rows, GGMLQuantizationType[quant_type]).astype(np.float32)


def check_bits(quant_type: str, rows: NDArray[np.uint8], device: str = "cpu") -> torch.Tensor:
    expected = torch.from_numpy(oracle(rows, quant_type))
    actual = dequantize(torch.from_numpy(rows).to(device), quant_type).cpu()
    assert actual.dtype == torch.float32
    assert bool(expected.isfinite().all()) and float(expected.abs().max()) > 0
    assert actual.shape == expected.shape
    assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))
    return actual


@pytest.fixture(scope="session")
def assert_equals_ggml() -> Callable[..., torch.Tensor]:
    """assert_equals_ggml(type, rows, device) compares bits and returns the values."""
    return check_bits
