from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memory.gguf.format import BLOCKS, TYPE_NAMES, quote, row_bytes

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kind", "columns", "size"),
    [
        ("F32", 7, 28),
        ("BF16", 7, 14),
        ("Q8_0", 64, 68),
        ("IQ2_XXS", 5120, 1320),
        ("IQ1_M", 2304, 504),
        ("IQ4_NL", 256, 144),
        ("MXFP4", 256, 136),
        ("NVFP4", 128, 72),
    ],
)
def test_bytes_of_a_row(kind: str, columns: int, size: int) -> None:
    assert row_bytes(kind, columns) == size


def test_ids_of_the_types_in_use() -> None:
    ids = {0: "F32", 1: "F16", 8: "Q8_0", 16: "IQ2_XXS", 20: "IQ4_NL", 29: "IQ1_M", 39: "MXFP4"}
    assert {number: TYPE_NAMES[number] for number in ids} == ids
    assert set(TYPE_NAMES.values()) == set(BLOCKS)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("blk.0.attn_norm.weight", "blk.0.attn_norm.weight"),
        ("two\nlines", "two\\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("ä\u2028", "\\xe4\\u2028"),
        ("Größe", "Größe"),
        ("x" * 81, "x" * 77 + "..."),
    ],
)
def test_text_for_messages(text: str, shown: str) -> None:
    assert quote(text) == shown


def test_package_names_are_imported_on_demand() -> None:
    code = "import sys, memory.gguf as g; assert 'torch' not in sys.modules; g.open_model; "
    code += "assert 'torch' in sys.modules; assert g.TensorInfo.__name__ == 'TensorInfo'; g.nothing"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert "has no attribute 'nothing'" in run.stderr, run.stderr
