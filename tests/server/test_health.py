from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from openai import InternalServerError

from server.version import version

Make = Callable[..., Any]


def test_ok(make_server: Make) -> None:
    server = make_server()
    status, _, body = server.get("/health")
    assert status == 200
    assert body["status"] == "ok"
    assert body["model"] == "scripted"
    assert body["version"] == version()
    assert (body["running"], body["waiting"]) == (0, 0)
    assert 0 <= body["uptime_s"] < 60
    assert server.get("/version")[2] == {"version": version()}


def test_loading(make_server: Make, engine_class: Any, until: Make) -> None:
    release = threading.Event()

    def load(progress: Callable[[str, float], None]) -> Any:
        progress("reading weights", 0.25)
        assert release.wait(60)
        return engine_class()

    server = make_server(load=load, wait_ready=False)
    until(lambda: server.get("/health")[2].get("progress") == 0.25)
    status, headers, body = server.get("/health")
    assert status == 503
    assert body == {"status": "loading", "progress": 0.25, "stage": "reading weights"}
    assert int(headers["Retry-After"]) > 0
    client = server.client()
    for ask in (
        lambda: client.models.list(),
        lambda: client.completions.create(model="m", prompt="a"),
        lambda: client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "q"}], stream=True
        ),
    ):
        with pytest.raises(InternalServerError) as caught:
            ask()
        assert caught.value.status_code == 503
        assert caught.value.code == "model_loading"
        assert int(caught.value.response.headers["retry-after"]) > 0
    release.set()
    until(lambda: server.get("/health")[0] == 200)


def test_frozen_engine_is_unhealthy_until_it_moves(make_server: Make) -> None:
    server = make_server()
    server.engine.step_age_s = 29.0
    assert server.get("/health")[0] == 200
    server.engine.step_age_s = 31.0
    status, _, body = server.get("/health")
    assert status == 503
    assert body["status"] == "error"
    assert "31 s" in body["message"]
    server.engine.step_age_s = None
    assert server.get("/health")[0] == 200


def test_dead_engine(make_server: Make) -> None:
    server = make_server()
    server.engine.dead = "gone"
    status, _, body = server.get("/health")
    assert status == 503
    assert body["status"] == "error"
