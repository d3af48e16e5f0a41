"""Files appear complete and together, or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from memory.gguf.maker.publication import Publication

ROOT = Path(__file__).parents[4]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with Publication() as files:
        files.begin(tmp_path / "a").write_text("new")
        files.begin(tmp_path / "b").write_text("second")
        assert (tmp_path / "a").read_text() == "old"
        assert not (tmp_path / "b").exists()
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "new"


@pytest.mark.parametrize("problem", [ValueError("x"), KeyboardInterrupt()])
def test_exception_leaves_what_was_there(problem: BaseException, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(type(problem)), Publication() as files:
        files.begin(tmp_path / "a").write_text("new")
        files.begin(tmp_path / "b")
        raise problem
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_operating_system_error_names_the_file(tmp_path: Path) -> None:
    expected = pytest.raises(ModelFileError, match="b: cannot be written: No space")
    with expected as caught, Publication() as files:
        files.begin(tmp_path / "a").write_text("whole")
        files.begin(tmp_path / "b").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.path == str(tmp_path / "b")
    assert names(tmp_path) == []


def test_name_taken_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ModelFileError, match="a: is not a regular file"), Publication() as files:
        files.begin(tmp_path / "a").write_text("new")
    assert names(tmp_path) == ["a"]


def test_killed_process_leaves_no_half_file(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from memory.gguf.maker.publication import Publication
with Publication() as files:
    files.begin(Path({str(tmp_path)!r}) / "a").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=60)
    assert result.returncode == -signal.SIGKILL
    assert not (tmp_path / "a").exists()
    assert all(name.startswith(".") for name in names(tmp_path))


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for target in (pipe, tmp_path):
        with pytest.raises(ModelFileError, match="not a regular file"), Publication() as files:
            files.begin(target)
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


def test_a_folder_that_refuses_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    expected = pytest.raises(ModelFileError, match="a: cannot be written: Read-only")
    with expected, Publication() as files:
        files.begin(tmp_path / "a")
        raise OSError(errno.EROFS, "Read-only file system")
