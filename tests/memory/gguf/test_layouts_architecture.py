"""Files of other architectures are refused with their reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory.gguf import open_draft, open_model


@pytest.mark.parametrize(
    ("arch", "extra", "words"),
    [
        ("llama", None, "'llama' is not supported; supported are deepseek41 (models) and dflash"),
        ("qwen4exp\n", None, "is not supported"),
        ("dflash", None, "not a model"),
        ("clip", None, "mmproj"),
        ("deepseek4", "output_hc_fn.weight", "DeepSeek V4, not V4.1"),
        ("deepseek4", "blk.1.engram_embd.weight", "before 2026-09-11"),
        ("deepseek4-dflash-draft", None, "draft of DeepSeek V4"),
    ],
)
def test_other_architectures_are_refused(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any], arch: str, extra: str, words: str
) -> None:
    tiny.set("general.architecture", "str", arch)
    if extra:
        tiny.put(extra, np.ones((2, 32)))
    path = tiny.write(tmp_path / "m.gguf")
    error = error_of(lambda: open_model(path))
    assert error.field == "general.architecture" and words in str(error)


def test_old_prefix_without_tensors_and_no_architecture(
    tiny: Any, tmp_path: Path, error_of: Callable[..., Any]
) -> None:
    tiny.set("general.architecture", "str", "deepseek4")
    tiny.keys["deepseek4.engram.layer_ids"] = ("[i32]", [1, 14])
    path = tiny.write(tmp_path / "m.gguf")
    assert "before 2026-09-11" in str(error_of(lambda: open_model(path)))
    tiny.set("general.architecture", "u32", 41)
    tiny.write(path)
    assert "not a string" in str(error_of(lambda: open_model(path)))
    tiny.drop("general.architecture").write(path)
    error = error_of(lambda: open_model(path))
    assert error.field == "general.architecture" and "missing" in str(error)


def test_a_model_is_no_draft(tiny: Any, tmp_path: Path, error_of: Callable[..., Any]) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    assert "not a DSpark draft" in str(error_of(lambda: open_draft(path)))
