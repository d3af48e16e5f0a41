"""IQ4 types equal ggml bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("quant_type", "columns"),
    [("IQ4_NL", n) for n in (32, 256, 480, 8192)] + [("IQ4_XS", n) for n in (256, 2304, 8192)],
)
def test_equals_ggml(
    quant_type: str,
    columns: int,
    device: str,
    make_rows: Callable[..., Any],
    assert_equals_ggml: Callable[..., Any],
) -> None:
    assert_equals_ggml(quant_type, make_rows(quant_type, (3, 2, columns), columns), device)
