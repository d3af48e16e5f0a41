"""The demonstration of `make demo` works: installed command, embedded model, streamed answer."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "bench/demo.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.slow
def test_demo_streams_an_answer_and_stops() -> None:
    result = run_demo()
    assert result.returncode == 0, result.stderr
    answer = re.search(r"assistant: (.*)", result.stdout)
    assert answer is not None and "Tokyo" in answer[1]
    assert result.stdout.rstrip().endswith("done")


@pytest.mark.slow
def test_demo_fails_loudly() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run_demo("--port", str(taken.getsockname()[1]))
    assert result.returncode == 1
    assert "demo failed: DemoError: the server ended with exit code" in result.stderr
    assert "Traceback" not in result.stderr
