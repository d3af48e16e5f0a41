"""Routes, methods, error shapes and limits of the whole application, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError, NotFoundError

Make = Callable[..., Any]
CHAT = {"messages": [{"role": "user", "content": "q"}], "thinking": {"type": "disabled"}}


def assert_error_shape(answer: Any) -> None:
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert isinstance(answer["error"]["message"], str)
    assert answer["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_roots(make_server: Make, path: str, method: str) -> None:
    status, _, body = make_server().get(path, method)
    assert status == 200
    assert (body is None) == (method == "HEAD")


@pytest.mark.parametrize("path", ["/nothing", "/v1/embeddings", "/v1/audio/speech", "/metricsx"])
def test_unknown_path(make_server: Make, path: str) -> None:
    status, headers, answer = make_server().get(path)
    assert status == 404
    assert headers["Content-Type"].startswith("application/json")
    assert_error_shape(answer)
    assert answer["error"]["code"] == "not_found"


def test_wrong_method(make_server: Make) -> None:
    server = make_server()
    status, headers, answer = server.get("/v1/chat/completions")
    assert status == 405
    assert headers["Allow"] == "POST"
    assert_error_shape(answer)
    assert answer["error"]["code"] == "method_not_allowed"
    assert server.post("/v1/models", {})[0] == 405


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_paths_work_without_version(make_server: Make, prefix: str) -> None:
    server = make_server()
    assert server.get(f"{prefix}/models")[0] == 200
    assert server.get(f"{prefix}/health")[0] == 200
    assert server.post(f"{prefix}/chat/completions", CHAT)[0] == 200
    assert server.post(f"{prefix}/completions", {"prompt": "a"})[0] == 200


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a": 1e}'],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize"])
def test_malformed_bodies(make_server: Make, raw: bytes, path: str) -> None:
    status, headers, answer = make_server().post(path, raw)
    assert status == 400
    assert headers["Content-Type"].startswith("application/json")
    assert_error_shape(answer)
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "x/y; charset=utf-16"])
def test_content_type_does_not_matter(make_server: Make, content_type: str) -> None:
    assert (
        make_server().post("/v1/completions", {"prompt": "a"}, **{"Content-Type": content_type})[0]
        == 200
    )


def test_lone_surrogates_are_replaced(make_server: Make) -> None:
    server = make_server()
    raw = b'{"prompt": "a\\ud800b\\ud83d\\ude00", "max_tokens": 2}'
    assert server.post("/v1/completions", raw)[0] == 200
    ids = server.engine.requests[0].prompt_ids[1:]
    assert server.engine.tokenizer.decode(ids) == "a�b😀"


def test_large_bodies(make_server: Make) -> None:
    server = make_server(max_body_bytes=3_000_000, max_model_len=3_000_000)
    fits = {"prompt": "x" * 2_000_000, "max_tokens": 1}  # more than the library's own 1 MiB
    assert server.post("/v1/completions", fits)[0] == 200
    with pytest.raises(APIStatusError) as caught:
        server.client().completions.create(model="m", prompt="x" * 3_100_000)
    assert caught.value.status_code == 413
    assert caught.value.code == "request_too_large"
    assert_error_shape({"error": caught.value.body})


def test_request_ids(make_server: Make) -> None:
    server = make_server()
    _, headers, _ = server.post("/v1/completions", {"prompt": "a"}, **{"X-Request-Id": "mine-1"})
    assert headers["x-request-id"] == "mine-1"
    seen = set()
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/completions", {}),
        ("/nothing", {}),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 0}),
    ):
        _, headers, _ = server.post(path, body)
        assert headers["x-request-id"].startswith("req_")
        seen.add(headers["x-request-id"])
    assert len(seen) == 4
    _, headers, _ = server.post("/nothing", {}, **{"X-Request-Id": "bad id " + "x" * 200})
    assert headers["x-request-id"].startswith("req_")


def test_stream_headers(make_server: Make) -> None:
    server = make_server()
    with server.client().chat.completions.with_streaming_response.create(
        model="m", messages=[{"role": "user", "content": "q"}], stream=True
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-request-id"]
        assert "content-encoding" not in answer.headers
        answer.read()


def test_strict_model(make_server: Make) -> None:
    server = make_server(strict_model=True, served_model_name="one,two")
    client = server.client()
    for name in ("one", "two"):
        assert client.completions.create(model=name, prompt="a").model == "one"
    assert server.post("/v1/completions", {"prompt": "a"})[0] == 200
    with pytest.raises(NotFoundError) as caught:
        client.completions.create(model="three", prompt="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(BadRequestError):
        client.completions.create(model=5, prompt="a")  # type: ignore[arg-type]


def test_garbage_on_the_socket_does_no_harm(make_server: Make) -> None:
    server = make_server()
    for raw in (b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(raw)
    assert server.get("/health")[0] == 200
