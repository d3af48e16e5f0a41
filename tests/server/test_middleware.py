from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from server.middleware import RequestIdFilter, current_request_id

Make = Callable[..., Any]


def test_filter_adds_the_id() -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "m", (), None)
    assert RequestIdFilter().filter(record)
    assert record.request_id == current_request_id() == "-"


def test_one_line_per_request(make_server: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "server.middleware")
    server = make_server()
    server.post("/v1/completions?secret=1", {"prompt": "private words"})
    server.get("/nothing")
    lines = [r.getMessage() for r in caplog.records if r.name == "server.middleware"]
    assert lines[0].startswith("method=POST path=/v1/completions status=200 ms=")
    assert lines[1].startswith("method=GET path=/nothing status=404 ms=")
    assert "private" not in caplog.text
    assert "secret" not in caplog.text


def test_bugs_are_logged_but_not_told(make_server: Make, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("inner detail")

    server.engine.submit = broken
    status, headers, answer = server.post("/v1/completions", {"prompt": "a"})
    assert status == 500
    assert answer["error"]["code"] == "internal_error"
    assert headers["x-should-retry"] == "false"
    assert "inner detail" not in str(answer)
    assert "inner detail" in caplog.text
