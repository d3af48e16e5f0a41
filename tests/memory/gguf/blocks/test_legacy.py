"""Q4_0 to Q8_0 equal ggml bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("columns", [32, 256, 480, 5120, 8192])
@pytest.mark.parametrize("quant_type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_equals_ggml(
    quant_type: str,
    columns: int,
    device: str,
    make_rows: Callable[..., Any],
    assert_equals_ggml: Callable[..., Any],
) -> None:
    assert_equals_ggml(quant_type, make_rows(quant_type, (3, 2, columns), columns), device)
