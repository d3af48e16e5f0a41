"""`ds41 serve` as a real process with the scripted engine: messages, signals, exit codes."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.commands.serve import is_loopback

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib.util, pathlib, sys, time

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

engine = load("fake_engine", "tests/server/conftest.py")
services = load("fake_services", "tests/server/commands/conftest.py")
from engine.errors import ModelFileError
from server.cli import main

fake = services.FakeServices(engine.FakeEngine, pathlib.Path(sys.argv[2]))
mode = sys.argv[1]
if mode == "slow":
    fake.on_request = lambda p, s: engine.FakeEngine.say("x" * 900, token_s=0.02)
elif mode == "broken":
    fake.problem = ModelFileError("m.gguf", "tensor 5", "is damaged")
elif mode == "dies":
    def die(prompt, params):
        fake.engines[0].dead = "CUDA error"
        return engine.FakeEngine.say("x" * 900, token_s=0.05)
    fake.on_request = die
elif mode == "endless":
    fake.load_engine = lambda *args: time.sleep(60)
sys.exit(main(sys.argv[3:], fake))
"""


class Process:
    """A running `ds41 serve`."""

    def __init__(self, mode: str, model: Path, *words: str) -> None:
        command = [sys.executable, "-c", PROGRAM, mode, str(model), "serve", "--port", "0", *words]
        self.child = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        self.line = self.child.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+) ", self.line)
        self.port = int(found[1]) if found else 0

    def get(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", data, timeout=20
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.load(problem)

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + 10
        while self.get("/health")[0] != 200:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def end(self, timeout_s: float = 10) -> tuple[int, str, str]:
        out, err = self.child.communicate(timeout=timeout_s)
        return self.child.returncode, out, err


@pytest.fixture
def serve(model: Path) -> Iterator[Any]:
    running: list[Process] = []

    def start(mode: str, *words: str) -> Process:
        running.append(Process(mode, model, *words))
        return running[-1]

    yield start
    for process in running:
        if process.child.poll() is None:
            process.child.kill()
        process.child.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal(serve: Any, number: int) -> None:
    process = serve("plain", "--served-model-name", "my-model,other")
    assert process.line == f"ds41: listening on http://127.0.0.1:{process.port} (model my-model)\n"
    process.wait_ready()
    _, models = process.get("/v1/models")
    assert [entry["id"] for entry in models["data"]] == ["my-model", "other"]
    _, answer = process.get("/v1/completions", {"prompt": "private", "model": "x"})
    assert answer["choices"][0]["text"] == "Hello world"
    process.child.send_signal(number)
    code, out, err = process.end()
    assert (code, out) == (0, "")
    assert "ds41: ready after" in err
    assert "path=/v1/completions status=200" in err
    assert "private" not in err
    assert "warning" not in err


def test_signal_drains_and_second_signal_ends(serve: Any) -> None:
    process = serve("slow", "--set", "drain_timeout_s=30")
    process.wait_ready()
    body = {"prompt": "a", "max_tokens": 900}
    threading.Thread(target=lambda: ask_quietly(process, body), daemon=True).start()
    while process.get("/health")[1]["running"] == 0:
        time.sleep(0.01)
    process.child.send_signal(signal.SIGTERM)
    while process.get("/health")[1]["status"] != "draining":
        time.sleep(0.01)
    status, refused = process.get("/v1/completions", body)
    assert (status, refused["error"]["code"]) == (503, "shutting_down")
    assert process.child.poll() is None
    process.child.send_signal(signal.SIGTERM)
    assert process.end()[0] == 128 + signal.SIGTERM


def ask_quietly(process: Process, body: Any) -> None:
    try:
        process.get("/v1/completions", body)
    except (OSError, ValueError):
        return


def test_drain_timeout_ends_a_slow_request(serve: Any) -> None:
    process = serve("slow", "--set", "drain_timeout_s=0.3")
    process.wait_ready()
    answers: list[Any] = []
    body = {"prompt": "a", "max_tokens": 900}
    thread = threading.Thread(target=lambda: answers.append(process.get("/v1/completions", body)))
    thread.start()
    while process.get("/health")[1]["running"] == 0:
        time.sleep(0.01)
    process.child.send_signal(signal.SIGTERM)
    thread.join(10)
    assert answers[0][0] == 503
    assert process.end()[0] == 0


def test_failed_load(serve: Any) -> None:
    code, _, err = serve("broken").end()
    assert code == 3
    assert err.splitlines()[-1] == "ds41: error: m.gguf: tensor 5: is damaged"
    assert "Traceback" not in err


def test_dead_engine_ends_with_an_error(serve: Any) -> None:
    process = serve("dies")
    process.wait_ready()
    status, answer = process.get("/v1/completions", {"prompt": "a", "max_tokens": 900})
    assert (status, answer["error"]["code"]) == (503, "engine_error")
    code, _, err = process.end()
    assert code == 1
    assert err.splitlines()[-1] == "ds41: error: the engine has stopped: CUDA error"


def test_stop_while_loading_does_not_wait(serve: Any) -> None:
    process = serve("endless")
    status, health = process.get("/health")
    assert (status, health["status"]) == (503, "loading")
    process.child.send_signal(signal.SIGTERM)
    assert process.end(5)[0] == 0


def test_port_in_use(serve: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = serve("plain", "--port", str(port))
        assert process.line == ""
        code, _, err = process.end()
    assert code == 2
    assert err.startswith(f"ds41: error: cannot listen on 127.0.0.1:{port}: ")
    assert err.count("\n") == 1


def test_missing_model(serve: Any, tmp_path: Path) -> None:
    code, out, err = serve("plain", str(tmp_path / "none.gguf")).end()
    assert (code, out) == (3, "")
    assert "none.gguf: found nothing, needed a GGUF file" in err


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
