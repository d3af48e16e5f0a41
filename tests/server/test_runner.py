"""Start, failed loads, draining and the end of a server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, InternalError, ModelFileError
from server.runner import Server, url_host
from server.state import ServerState, Timings

Make = Callable[..., Any]


def in_thread(target: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(target()), daemon=True)
    thread.start()
    return thread, results


def test_failed_load_is_raised(make_server: Make) -> None:
    def load(progress: Any) -> Any:
        raise ModelFileError("x.gguf", "magic", "found junk")

    server = make_server(load=load, wait_ready=False)
    server.join()
    assert isinstance(server.problem, ModelFileError)
    assert str(server.problem) == "x.gguf: magic: found junk"


def test_unexpected_load_error_is_raised_too(make_server: Make) -> None:
    def load(progress: Any) -> Any:
        raise KeyError("bug")

    server = make_server(load=load, wait_ready=False)
    server.join()
    assert isinstance(server.problem, KeyError)


def test_dead_engine_ends_the_server(make_server: Make, until: Make) -> None:
    server = make_server(timings=Timings(poll_s=0.05, fault_linger_s=3))
    server.engine.dead = "CUDA error: unspecified launch failure"
    until(lambda: server.state.fault)
    assert server.get("/health")[0] == 503
    server.join()
    assert isinstance(server.problem, InternalError)
    assert "CUDA error" in str(server.problem)
    assert server.engine.closed


def test_address_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        state = ServerState(config=EngineConfig(port=port), file_name="m")
        server = Server(state, lambda progress: pytest.fail("must not load"))
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            asyncio.run(server.run(handle_signals=False))


def test_drain_lets_running_requests_finish(
    make_server: Make, engine_class: Any, until: Make
) -> None:
    server = make_server(
        lambda p, s: engine_class.say("x" * 20, token_s=0.15), drain_timeout_s=30.0
    )
    body = {"prompt": "a", "max_tokens": 100}
    whole, answers = in_thread(lambda: server.post("/v1/completions", body))
    streamed, events = in_thread(lambda: server.events(body, "/v1/completions"))
    until(lambda: sum(r.num_generated > 0 for r in server.engine.requests) == 2)
    server.request_stop()
    until(lambda: server.state.draining)
    status, _, health = server.get("/health")
    assert status == 503
    assert health["status"] == "draining"
    status, headers, refused = server.post("/v1/completions", body)
    assert status == 503
    assert refused["error"]["code"] == "shutting_down"
    assert int(headers["Retry-After"]) > 0
    for thread in (whole, streamed):
        thread.join(20)
    assert answers[0][0] == 200
    assert answers[0][2]["choices"][0]["text"] == "x" * 20
    assert events[0][-1] == "[DONE]"
    assert events[0][-2]["choices"][0]["finish_reason"] == "stop"
    server.join()
    assert server.problem is None
    assert server.engine.closed


def test_drain_refuses_waiting_and_cuts_slow_requests(
    make_server: Make, engine_class: Any, until: Make
) -> None:
    server = make_server(
        lambda p, s: engine_class.say("x" * 900, token_s=0.05),
        drain_timeout_s=5.0,
        max_num_seqs=1,
    )
    body = {"prompt": "a", "max_tokens": 900}
    running, events = in_thread(lambda: server.events(body, "/v1/completions"))
    until(lambda: server.engine.requests and server.engine.requests[0].num_generated > 0)
    waiting, answers = in_thread(lambda: server.post("/v1/completions", body))
    until(lambda: len(server.engine.requests) == 2)
    start_s = time.monotonic()
    server.request_stop()
    waiting.join(5)
    assert time.monotonic() - start_s < 4
    assert answers[0][0] == 503
    assert answers[0][2]["error"]["code"] == "shutting_down"
    running.join(20)
    assert time.monotonic() - start_s > 4.9
    assert events[0][-1] == "[DONE]"
    assert events[0][-2]["error"]["code"] == "shutting_down"
    server.join()
    assert server.problem is None


def test_stop_while_loading(make_server: Make, engine_class: Any) -> None:
    release = threading.Event()

    def load(progress: Any) -> Any:
        release.wait(10)
        return engine_class()

    server = make_server(load=load, wait_ready=False)
    server.request_stop()
    server.join()
    assert server.problem is None
    assert server._server.is_stuck
    release.set()


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "[::1]"),
        ("localhost", "localhost"),
    ],
)
def test_url_host(host: str, shown: str) -> None:
    assert url_host(host) == shown
