"""MXFP4 and NVFP4 equal ggml bit for bit, for every scale code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from memory.gguf.blocks.microscaling import half_e8m0, half_ue4m3

ALL_CODES = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("quant_type", "columns"),
    [("MXFP4", n) for n in (32, 256, 480, 8192)] + [("NVFP4", n) for n in (64, 256, 2304, 8192)],
)
def test_equals_ggml(
    quant_type: str,
    columns: int,
    device: str,
    make_rows: Callable[..., Any],
    assert_equals_ggml: Callable[..., Any],
) -> None:
    assert_equals_ggml(quant_type, make_rows(quant_type, (3, 2, columns), columns), device)


def test_e8m0_is_a_power_of_two(device: str) -> None:
    expected = np.exp2(np.arange(256, dtype=np.float64) - 128)
    actual = half_e8m0(ALL_CODES.to(device)).cpu().numpy()
    np.testing.assert_array_equal(actual.astype(np.float64), expected)


def test_e4m3_equals_torch(device: str) -> None:
    expected = ALL_CODES[:127].view(torch.float8_e4m3fn).float() / 2
    actual = half_ue4m3(ALL_CODES.to(device)).cpu()
    assert torch.equal(actual[:127], expected)
    assert actual[127] == 0
    assert torch.equal(actual[128:255], expected)
    assert actual[255] == 240  # the top bit is ignored and only 0x7F is no number
