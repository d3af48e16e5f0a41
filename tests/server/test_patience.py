"""Leading newlines of answers that take long."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from openai import APIConnectionError

from server.state import Timings

Make = Callable[..., Any]
MESSAGES: Any = [{"role": "user", "content": "q"}]
FAST = Timings(first_newline_s=0.2, poll_s=0.05, fault_linger_s=0.3)


def test_newlines_come_before_the_answer(make_server: Make, engine_class: Any) -> None:
    prefills_s = iter([3.0, 0.9])
    server = make_server(
        lambda p, s: engine_class.say("Hi", prefill_s=next(prefills_s)),
        timings=FAST,
        keepalive_s=0.2,
    )
    data = json.dumps({"messages": MESSAGES, "thinking": {"type": "disabled"}}).encode()
    start_s = time.monotonic()
    with urllib.request.urlopen(f"{server.url}/v1/chat/completions", data, timeout=30) as answer:
        assert time.monotonic() - start_s > 0.15
        assert not server.engine.requests[0].finished.is_set()
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        text = answer.read().decode()
    assert len(text) - len(text.lstrip("\n")) >= 2
    assert json.loads(text)["choices"][0]["message"]["content"] == "Hi"
    answer = server.client().chat.completions.create(model="m", messages=MESSAGES)
    assert answer.usage.completion_tokens == 3


def test_fast_answers_have_a_length(make_server: Make) -> None:
    server = make_server()
    status, headers, _ = server.post("/v1/chat/completions", {"messages": MESSAGES})
    assert status == 200
    assert "Content-Length" in headers


def test_late_failure_closes_the_connection(make_server: Make, engine_class: Any) -> None:
    server = make_server(
        lambda p, s: engine_class.say("", prefill_s=2, failure="x", stop=False), timings=FAST
    )
    with pytest.raises(APIConnectionError):
        server.client().chat.completions.create(model="m", messages=MESSAGES)
    assert server.get("/health")[0] == 200
