"""Types without blocks keep their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from memory.gguf.blocks import dequantize


@pytest.mark.parametrize("columns", [1, 7, 256, 8192])
@pytest.mark.parametrize("quant_type", ["F32", "F16", "BF16"])
def test_equals_ggml(
    quant_type: str,
    columns: int,
    device: str,
    make_rows: Callable[..., Any],
    assert_equals_ggml: Callable[..., Any],
) -> None:
    assert_equals_ggml(quant_type, make_rows(quant_type, (3, 2, columns), columns), device)


def test_signed_bytes_become_numbers(device: str) -> None:
    values = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    actual = dequantize(torch.from_numpy(values.view(np.uint8)).to(device), "I8").cpu()
    np.testing.assert_array_equal(actual.numpy(), values.astype(np.float32))


@pytest.mark.parametrize(
    ("quant_type", "dtype"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)],
)
def test_infinities_and_nan_pass_through(quant_type: str, dtype: torch.dtype) -> None:
    values = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 1.0], dtype=dtype)
    actual = dequantize(values.view(torch.uint8), quant_type)
    assert torch.equal(actual.isnan(), values.isnan())
    assert torch.equal(actual[:2], values[:2].float())
    assert torch.equal(torch.signbit(actual[3:]), torch.tensor([True, False]))
