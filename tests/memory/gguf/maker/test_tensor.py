"""Tensors are made of checkpoint tensors and taken apart again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf.maker.checkpoint import Checkpoint
from memory.gguf.maker.tensor import Join, Tensor


def folder(**tensors: np.ndarray[Any, Any]) -> Checkpoint:
    return Checkpoint(Path("folder"), tensors)


@pytest.mark.parametrize(
    ("join", "shape", "parts"),
    [
        ("one", (4, 6), [(4, 6)]),
        ("stack", (3, 4, 6), [(4, 6)] * 3),
        ("rows", (9, 6), [(2, 6), (7, 6)]),
    ],
)
def test_gather_and_scatter(join: Join, shape: tuple[int, ...], parts: list[Any]) -> None:
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(part, dtype=np.float32) for part in parts]
    names = tuple(f"t{i}" for i in range(len(values)))
    tensor = Tensor("x", shape, "attention", names, join)
    whole = tensor.gather(folder(**dict(zip(names, values, strict=True))))
    assert whole.shape == shape
    np.testing.assert_array_equal(whole.reshape(-1, 6), np.concatenate(values))
    back = tensor.scatter(whole, [part[0] for part in parts])
    for name, value in zip(names, values, strict=True):
        np.testing.assert_array_equal(back[name], value)


def test_product() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 4, 6), dtype=np.float32)
    tensor = Tensor("gate", (4, 6), "engram_gate", ("a", "b"), "product")
    whole = tensor.gather(folder(a=a, b=b))
    np.testing.assert_array_equal(whole, a * b)
    back = tensor.scatter(whole, [])
    np.testing.assert_array_equal(back["a"] * back["b"], whole)


def test_half_precision_is_widened() -> None:
    value = np.arange(6, dtype=np.float16).reshape(1, 6)
    assert Tensor("x", (1, 6), "norm", ("a",)).gather(folder(a=value)).dtype == np.float32


@pytest.mark.parametrize(
    ("join", "tensors", "message"),
    [
        ("one", {"a": (4, 5)}, r"tensor a: has shape \[4, 5\], needed \[4, 6\]"),
        ("stack", {"a": (6,), "b": (6,), "c": (6,)}, r"needed \[4, 6\]"),
        ("stack", {"a": (12,), "b": (3, 4)}, r"needed \[4, 6\]"),
        ("product", {"a": (4, 6), "b": (6, 4)}, r"needed \[4, 6\]"),
        ("rows", {"a": (1, 6), "b": (2, 6)}, r"needed \[4, 6\]"),
    ],
)
def test_sizes_that_do_not_fit(join: Join, tensors: dict[str, Any], message: str) -> None:
    checkpoint = folder(**{name: np.zeros(shape) for name, shape in tensors.items()})
    with pytest.raises(ModelFileError, match=f"^folder: tensor a: .*{message[-20:]}"):
        Tensor("x", (4, 6), "attention", tuple(tensors), join).gather(checkpoint)


def test_missing_source_is_named() -> None:
    with pytest.raises(ModelFileError, match=r"^folder: tensor b: missing") as caught:
        Tensor("x", (2, 6), "norm", ("a", "b"), "rows").gather(folder(a=np.zeros((1, 6))))
    assert caught.value.field == "tensor b"
