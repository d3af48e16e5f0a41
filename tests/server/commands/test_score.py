from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError, RequestError
from server.commands.score import write_npy


@pytest.mark.parametrize("value", [[5, 6, 7], {"tokens": [5, 6, 7], "note": "x"}])
def test_result_file(
    ds41: Any, services: Any, model: Path, json_file: Any, tmp_path: Path, value: Any
) -> None:
    out = tmp_path / "logits"  # no ending is added
    words = ["--tokens", json_file(value), "--out", out, "--chunk", 2, "--decode-from", 1]
    code, stdout, _ = ds41("score", model, *words, "--device", "cpu", "--set", "kv_fake_quant=off")
    assert (code, stdout) == (0, f"{out}: float32 [3, 7]\n")
    logits = np.load(out)
    assert logits.dtype == np.float32
    assert np.array_equal(logits, np.arange(21, dtype=np.float32).reshape(3, 7))
    call = services.calls[0][1]
    assert (call["tokens"], call["chunk"], call["decode_from"]) == ([5, 6, 7], 2, 1)
    assert call["config"].kv_fake_quant is False
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "input.json",
        "logits",
        "small.gguf",
    ]


def test_defaults(ds41: Any, services: Any, model: Path, json_file: Any, tmp_path: Path) -> None:
    assert ds41("score", model, "--tokens", json_file([1]), "--out", tmp_path / "x.npy")[0] == 0
    assert services.calls[0][1]["chunk"] is None
    assert services.calls[0][1]["decode_from"] is None


def test_errors_leave_no_file(
    ds41: Any, services: Any, model: Path, json_file: Any, tmp_path: Path
) -> None:
    out = tmp_path / "x.npy"
    for value in ("text", {"ids": [1]}, 5):
        code, _, err = ds41("score", model, "--tokens", json_file(value), "--out", out)
        assert code == 2
        assert "list of token ids" in err
    bad = tmp_path / "bad.json"
    bad.write_text("[1,")
    code, _, err = ds41("score", model, "--tokens", bad, "--out", out)
    assert code == 2
    assert "bad.json is not valid JSON" in err
    assert ds41("score", model, "--tokens", tmp_path / "none", "--out", out)[0] == 2
    code, _, err = ds41("score", model, "--tokens", json_file([1]), "--out", tmp_path / "no" / "x")
    assert code == 2
    assert "does not exist" in err
    assert services.calls == []
    services.problem = RequestError("score: token 9 is not an id")
    assert ds41("score", model, "--tokens", json_file([1]), "--out", out)[0] == 2
    assert not out.exists()


def test_an_old_result_survives_a_failed_write(tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    write_npy(out, np.ones((1, 2), np.float32))

    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise OSError(28, "No space left on device")

    with pytest.raises(Exception, match="No space left"):
        write_npy(out, Broken())  # type: ignore[arg-type]
    assert np.array_equal(np.load(out), np.ones((1, 2)))
    assert list(tmp_path.iterdir()) == [out]


def test_target_is_checked_before_scoring(
    ds41: Any, services: Any, model: Path, json_file: Any, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = model.read_bytes()
    for out, problem in ((pipe, "regular file"), (tmp_path, "regular file"), (model, "the model")):
        code, _, err = ds41("score", model, "--tokens", json_file([1]), "--out", out)
        assert code == 2
        assert problem in err
    assert services.calls == []
    assert pipe.is_fifo()
    assert model.read_bytes() == content


def test_a_folder_that_refuses_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *args: Any, **named: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
        write_npy(tmp_path / "x.npy", np.ones((1, 2), np.float32))
