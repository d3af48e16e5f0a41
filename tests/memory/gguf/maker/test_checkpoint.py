"""Reading checkpoint folders, and what is said about bad ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ConfigError, ModelFileError
from memory.gguf.maker.checkpoint import read_checkpoint


def test_all_files_and_types(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(3, 5, generator=generator)
    dtypes = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
    save_file({str(d): value.to(d) for d in dtypes}, tmp_path / "a.safetensors")
    integers = {"i": torch.arange(4), "j": torch.arange(4).int(), "u": torch.arange(4).byte()}
    save_file(integers, tmp_path / "b.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    for dtype in dtypes:
        expected = value.to(dtype).double().numpy()
        np.testing.assert_array_equal(checkpoint[str(dtype)].astype(np.float64), expected)
    for name in integers:
        assert checkpoint[name].tolist() == [0, 1, 2, 3]
    assert "i" in checkpoint
    assert "k" not in checkpoint
    with pytest.raises(ModelFileError, match="tensor k: missing in the checkpoint"):
        checkpoint["k"]


def test_type_that_is_not_converted(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4).to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    with pytest.raises(ModelFileError, match=r"a\.safetensors: tensor w: type F8_E4M3; needs F32"):
        read_checkpoint(tmp_path)


def test_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no \*\.safetensors file"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\xff" * 64, b"\x10\0\0\0\0\0\0\0{}"])
def test_damaged_file(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError, match=r"a\.safetensors: cannot be read"):
        read_checkpoint(tmp_path)


def test_safetensors_package_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ConfigError, match="pip install safetensors"):
        read_checkpoint(tmp_path)
