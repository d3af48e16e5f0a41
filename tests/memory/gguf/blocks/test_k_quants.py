"""K-quants equal ggml bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("columns", [256, 512, 2304, 5120, 8192])
@pytest.mark.parametrize("quant_type", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_equals_ggml(
    quant_type: str,
    columns: int,
    device: str,
    make_rows: Callable[..., Any],
    assert_equals_ggml: Callable[..., Any],
) -> None:
    assert_equals_ggml(quant_type, make_rows(quant_type, (3, 2, columns), columns), device)
