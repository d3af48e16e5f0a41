"""The demonstration behind `make demo`: start a server, stream one chat answer, stop the server.

It uses the installed `ds41` command with the embedded model, plain HTTP and nothing else. Every
step is printed with its time; any surprise ends it with exit code 1 and the server's log.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

HOST = "127.0.0.1"
QUESTION = "What is the capital of Japan?"
START_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class DemoError(Exception):
    """The demonstration did not go as it must."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def start_server(port: int, log: IO[str]) -> subprocess.Popen[str]:
    command = Path(sys.executable).parent / "ds41"
    if not command.exists():
        raise DemoError(f"{command} not found; install the project first (`make demo` does it)")
    arguments = [str(command), "serve", "--set", f"host={HOST}", "--set", f"port={port}"]
    return subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, text=True)


def request_json(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.load(response)
    finally:
        connection.close()


def wait_until_ready(port: int, server: subprocess.Popen[str]) -> str:
    """Return the model's name once /health says 200."""
    deadline = time.monotonic() + START_TIMEOUT_S
    last = "no answer"
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise DemoError(f"the server ended with exit code {server.returncode}")
        try:
            status, body = request_json(port, "/health")
        except OSError as problem:
            last = str(problem)
        else:
            last = f"{status} {body}"
            if status == 200:
                return str(request_json(port, "/v1/models")[1]["data"][0]["id"])
            if body.get("status") == "error":
                break
        time.sleep(0.1)
    raise DemoError(f"the server is not ready after {START_TIMEOUT_S:.0f} s: {last}")


def stream_answer(port: int, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a streamed chat completion."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise DemoError(f"HTTP {response.status}: {response.read().decode()}")
        for line in response:
            name, _, data = line.decode("utf-8").strip().partition(": ")
            if name != "data":
                continue
            if data == "[DONE]":
                return
            yield json.loads(data)
        raise DemoError("the stream ended without [DONE]")
    finally:
        connection.close()


def chat(port: int, model: str) -> None:
    print(f"\n  user:      {QUESTION}\n  assistant: ", end="", flush=True)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": True,
    }
    text, finish_reason = "", None
    for chunk in stream_answer(port, body):
        for choice in chunk["choices"]:
            piece = choice["delta"].get("content") or ""
            text += piece
            print(piece, end="", flush=True)
            finish_reason = choice["finish_reason"] or finish_reason
    print("\n")
    if not text or finish_reason not in ("stop", "length"):
        raise DemoError(f"the answer is {text!r}, finish_reason {finish_reason!r}")


def stop_server(server: subprocess.Popen[str]) -> None:
    server.terminate()
    try:
        code = server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DemoError(f"the server has not stopped after {STOP_TIMEOUT_S:.0f} s") from None
    if code != 0:
        raise DemoError(f"the server stopped with exit code {code}")


def run(port: int, log: IO[str]) -> None:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {text}", flush=True)

    say(f"starting `ds41 serve` with the embedded model on http://{HOST}:{port}")
    server = start_server(port, log)
    try:
        model = wait_until_ready(port, server)
        say(f"ready; asking {model} through POST /v1/chat/completions, streamed")
        chat(port, model)
        say("stopping the server")
        stop_server(server)
        say("done")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=0, help="port to serve on; 0 takes a free one")
    port = parser.parse_args().port or free_port()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            run(port, log)
        except (DemoError, OSError, http.client.HTTPException, ValueError, LookupError) as problem:
            log.seek(0)
            print(f"\nThe server said:\n{log.read()}", file=sys.stderr)
            print(f"demo failed: {type(problem).__name__}: {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
