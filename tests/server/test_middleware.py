from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web import RequestPayloadError

from server.middleware import MalformedRequestFilter, RequestIdFilter, current_request_id

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


@pytest.mark.parametrize("problem", [BadHttpMessage("bad\n\n  line"), RequestPayloadError("x")])
def test_junk_is_logged_in_one_line(problem: Exception) -> None:
    info = (type(problem), problem, None)
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "f", 1, "from %s", ("c",), info)
    assert MalformedRequestFilter().filter(record)
    line = logging.Formatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("WARNING malformed request: ")
    assert line.endswith(" ".join(str(problem).split()))
    assert "\n" not in line


def test_other_records_keep_their_traceback() -> None:
    problem = ValueError("x")
    info = (ValueError, problem, None)
    record = logging.LogRecord("aiohttp.server", logging.ERROR, "f", 1, "m", (), info)
    assert MalformedRequestFilter().filter(record)
    assert (record.exc_info, record.getMessage(), record.levelno) == (info, "m", logging.ERROR)
