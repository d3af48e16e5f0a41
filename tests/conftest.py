"""Shared fixtures: golden vectors and files made from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of the golden model and its vectors."""
    return DATA / "golden"


@pytest.fixture(scope="session")
def operators(golden_dir: Path) -> dict[str, torch.Tensor]:
    """Golden vectors of single operators."""
    return load_file(golden_dir / "cases" / "operators.safetensors")
