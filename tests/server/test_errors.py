from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from engine.errors import CapacityError, ConfigError, DriverError, InternalError, RequestError
from server import errors
from server.errors import ErrorReply, reply_for


@pytest.mark.parametrize(
    ("problem", "status", "kind", "code", "param"),
    [
        (RequestError("m", "p", "c"), 400, "invalid_request_error", "c", "p"),
        (RequestError("m", status=404), 404, "invalid_request_error", None, None),
        (CapacityError("m"), 429, "rate_limit_error", "queue_full", None),
        (InternalError("m"), 500, "server_error", "internal_error", None),
        (DriverError("m"), 500, "server_error", "internal_error", None),
        (ConfigError("m"), 500, "server_error", "internal_error", None),
        (ValueError("m"), 500, "server_error", "internal_error", None),
        (errors.model_loading(0.5), 503, "server_error", "model_loading", None),
        (errors.shutting_down(), 503, "server_error", "shutting_down", None),
        (errors.engine_dead(), 503, "server_error", "engine_error", None),
        (errors.generation_failed(), 500, "server_error", "internal_error", None),
        (web.HTTPNotFound(), 404, "invalid_request_error", "not_found", None),
        (
            web.HTTPMethodNotAllowed("PUT", ["GET"]),
            405,
            "invalid_request_error",
            "method_not_allowed",
            None,
        ),
        (
            web.HTTPRequestEntityTooLarge(max_size=1, actual_size=2),
            413,
            "invalid_request_error",
            "request_too_large",
            None,
        ),
        (web.HTTPBadRequest(), 400, "invalid_request_error", None, None),
    ],
)
def test_table(
    problem: BaseException, status: int, kind: str, code: str | None, param: str | None
) -> None:
    reply = reply_for(problem)
    assert (reply.status, reply.type, reply.code, reply.param) == (status, kind, code, param)
    assert reply.body()["error"]["message"]


def test_secrets_stay_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    problem = RuntimeError("cannot open a private file")
    assert "private" not in reply_for(problem).message
    assert "private" in caplog.text


def test_headers_for_retries() -> None:
    assert int(reply_for(CapacityError("x")).headers["Retry-After"]) > 0
    assert int(errors.model_loading(0.0).reply.headers["Retry-After"]) > 0
    assert reply_for(ValueError("x")).headers["x-should-retry"] == "false"
    assert errors.engine_dead().reply.headers["x-should-retry"] == "false"
    assert "x-should-retry" not in errors.shutting_down().reply.headers


def test_response_is_json() -> None:
    response = ErrorReply(418, "é", "t", headers={"A": "b"}).response()
    assert response.status == 418
    assert response.content_type == "application/json"
    assert response.headers["A"] == "b"
    body: Any = json.loads(response.text or "")
    assert body == {"error": {"message": "é", "type": "t", "param": None, "code": None}}
