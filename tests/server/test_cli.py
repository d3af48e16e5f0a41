"""Usage, exit codes and messages of the whole command line; some as real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CapacityError, DriverError, PlacementError
from server.cli import COMMANDS, main
from server.version import version

ROOT = Path(__file__).parents[2]


def process(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server.cli", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False, **options
    )


def run(*words: str, capsys: Any, services: Any = None) -> tuple[int, str, str]:
    code = main(list(words), services)
    out, err = capsys.readouterr()
    return code, out, err


def test_version(capsys: Any) -> None:
    assert run("--version", capsys=capsys) == (0, f"ds41 {version()}\n", "")


def test_help(capsys: Any) -> None:
    code, out, _ = run("--help", capsys=capsys)
    assert code == 0
    for name in COMMANDS:
        assert name in out
    for name in COMMANDS:
        code, out, _ = run(name, "--help", capsys=capsys)
        assert code == 0
        assert f"ds41 {name}" in out.partition("examples:")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "a command is needed (see ds41 --help)"),
        (["srve"], "unknown command 'srve'; did you mean serve?"),
        (["zzzzzz"], "unknown command 'zzzzzz' (see"),
        (["serve", "--prot", "80"], "unknown option '--prot'; did you mean --port?"),
        (["generate", "--promt=x"], "unknown option '--promt'; did you mean --prompt?"),
        (["serve", "--port", "eighty"], "argument --port: invalid int value: 'eighty'"),
        (["serve", "--port"], "argument --port: expected one argument"),
        (["serve", "a", "b"], "unrecognized arguments: b"),
        (["score", "m"], "required: --tokens, --out"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_wrong_usage(capsys: Any, words: list[str], message: str) -> None:
    code, out, err = run(*words, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("ds41: error: ")
    assert message in err
    assert err.count("\n") == 1


class Failing:
    """Services that raise; enough for `inspect`."""

    def __init__(self, problem: BaseException) -> None:
        self._problem = problem

    def inspect(self, *_: Any) -> None:
        raise self._problem


@pytest.mark.parametrize(
    ("problem", "code", "message"),
    [
        (PlacementError("needs 5 GiB,\n has 2"), 4, "ds41: error: needs 5 GiB, has 2\n"),
        (CapacityError("full"), 5, "ds41: error: full\n"),
        (DriverError("no driver"), 6, "ds41: error: no driver\n"),
        (OSError(28, "No space left"), 1, "ds41: error: [Errno 28] No space left\n"),
        (ValueError("odd"), 1, "ds41: error: ValueError: odd (--debug shows where)\n"),
        (MemoryError(), 1, "ds41: error: MemoryError: MemoryError (--debug shows where)\n"),
        (KeyboardInterrupt(), 130, "ds41: interrupted\n"),
    ],
)
def test_exit_codes(
    capsys: Any, tmp_path: Path, problem: BaseException, code: int, message: str
) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    result = run("inspect", str(model), capsys=capsys, services=Failing(problem))
    assert result == (code, "", message)


def test_debug_shows_the_traceback(capsys: Any, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    words = ("inspect", str(model), "--debug")
    code, _, err = run(*words, capsys=capsys, services=Failing(ValueError("odd")))
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("ds41: error: ValueError: odd\n")


def test_process_codes_and_streams(tmp_path: Path) -> None:
    missing = process("render", str(tmp_path / "none.json"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr == f"ds41: error: {tmp_path}/none.json: No such file or directory\n"
    good = process("parse", "-", input='{"model_output": "Hm</think>é"}')
    assert (good.returncode, good.stderr) == (0, "")
    assert '"content": "é"' in good.stdout


def test_broken_pipe_is_quiet() -> None:
    command = [sys.executable, "-m", "server.cli", "parse", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin and child.stdout and child.stderr
        child.stdout.close()  # before there is anything to read
        child.stdin.write(b'{"model_output": "a"}')
        child.stdin.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141


def test_help_does_not_load_the_engine() -> None:
    code = "import sys, server.cli; server.cli.main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0
