"""Clients that leave, queues that are full, engines that are slow."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from openai import RateLimitError

Make = Callable[..., Any]
CHAT = {"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "disabled"}}


def open_request(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(head + raw)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_disconnect_cancels_at_once(
    make_server: Make, engine_class: Any, until: Make, stream: bool, phase: str, path: str
) -> None:
    in_prefill = phase == "prefill"
    server = make_server(
        lambda p, s: engine_class.say(
            "x" * 4000, prefill_s=30 if in_prefill else 0, token_s=0 if in_prefill else 0.02
        )
    )
    body = {**CHAT, "prompt": "a", "max_tokens": 4000, "stream": stream}
    connection = open_request(server.port, path, body)
    until(lambda: len(server.engine.requests) == 1)
    request = server.engine.requests[0]
    if not in_prefill:
        until(lambda: request.num_generated > 3)
    assert not request.cancelled.is_set()
    connection.close()
    until(request.finished.is_set, 10)  # by itself it would take 30 s or more
    assert request.reason == "abort"
    until(lambda: not server.state.generations)
    assert server.get("/health")[0] == 200


def test_disconnect_leaves_the_queue(make_server: Make, engine_class: Any, until: Make) -> None:
    server = make_server(
        lambda p, s: engine_class.say("x" * 900, token_s=0.02), max_num_seqs=1, max_model_len=9999
    )
    body = {"prompt": "a", "max_tokens": 900}
    running = open_request(server.port, "/v1/completions", body)
    until(lambda: len(server.engine.requests) == 1)
    waiting = open_request(server.port, "/v1/completions", body)
    until(lambda: len(server.engine.requests) == 2)
    waiting.close()
    until(server.engine.requests[1].cancelled.is_set)
    assert not server.engine.requests[0].cancelled.is_set()
    running.close()
    until(server.engine.requests[0].finished.is_set)


def test_all_choices_are_cancelled(make_server: Make, engine_class: Any, until: Make) -> None:
    server = make_server(lambda p, s: engine_class.say("x" * 900, token_s=0.02), max_num_seqs=3)
    connection = open_request(server.port, "/v1/completions", {"prompt": ["a"] * 6, "n": 2})
    until(lambda: len(server.engine.requests) == 3)
    connection.close()
    until(lambda: all(request.finished.is_set() for request in server.engine.requests))
    time.sleep(0.2)
    assert len(server.engine.requests) == 3
    assert not server.state.generations


def test_queue_full(make_server: Make, engine_class: Any, until: Make) -> None:
    server = make_server(
        lambda p, s: engine_class.say("x" * 900, token_s=0.05), max_num_seqs=1, max_waiting=1
    )
    connections = []
    for count in (1, 2):
        connections.append(open_request(server.port, "/v1/completions", {"prompt": "a"}))
        until(lambda count=count: len(server.engine.requests) == count)
    for stream in (False, True):
        with pytest.raises(RateLimitError) as caught:
            server.client().completions.create(model="m", prompt="a", stream=stream)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) > 0
    for connection in connections:
        connection.close()


def test_engine_death_ends_waiting_clients(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("x" * 900, token_s=0.05))
    results: list[Any] = []

    def ask() -> None:
        results.append(server.post("/v1/completions", {"prompt": "a", "max_tokens": 900}))

    def ask_stream() -> None:
        results.append(server.events({"prompt": "a", "max_tokens": 900}, "/v1/completions"))

    threads = [threading.Thread(target=target) for target in (ask, ask_stream)]
    for thread in threads:
        thread.start()
    while len(server.engine.requests) < 2:
        time.sleep(0.01)
    server.engine.dead = "the device is lost"
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    events = next(result for result in results if isinstance(result, list))
    status, headers, answer = next(result for result in results if isinstance(result, tuple))
    assert status == 503
    assert answer["error"]["code"] == "engine_error"
    assert headers["x-should-retry"] == "false"
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == "engine_error"
    server.join()
    assert "the device is lost" in str(server.problem)
