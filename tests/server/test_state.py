from __future__ import annotations

from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import RequestError
from server.errors import ServiceError
from server.state import ServerState


def make_state(**settings: Any) -> ServerState:
    return ServerState(config=EngineConfig(**settings), file_name="file")


@pytest.mark.parametrize(
    ("served", "names"),
    [("", ["file"]), ("a", ["a"]), ("a, b,", ["a", "b"]), (" , ", ["file"])],
)
def test_names(served: str, names: list[str]) -> None:
    state = make_state(served_model_name=served)
    assert state.model_names == names
    assert state.model_name == names[0]


def test_engine_is_refused_with_the_reason(engine_class: Any) -> None:
    state = make_state()

    def code() -> str | None:
        with pytest.raises(ServiceError) as caught:
            state.require_engine()
        return caught.value.reply.code

    assert code() == "model_loading"
    state.engine = engine_class()
    assert state.require_engine() is state.engine
    state.draining = True
    assert code() == "shutting_down"
    state.fault = "broken"
    assert code() == "engine_error"


def test_model_check() -> None:
    make_state().check_model({"model": "anything"})
    strict = make_state(strict_model=True, served_model_name="a,b")
    for body in ({}, {"model": None}, {"model": ""}, {"model": "b"}):
        strict.check_model(body)
    with pytest.raises(RequestError) as caught:
        strict.check_model({"model": "c"})
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    with pytest.raises(RequestError):
        make_state().check_model({"model": ["a"]})
