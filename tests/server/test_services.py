from __future__ import annotations

import inspect
from typing import Any

from server.services import EngineServices


def test_entry_points_exist_and_take_what_is_passed() -> None:
    from engine import api, inspect_model, make_tiny, pocket, score

    def takes(function: Any, *positional: object, **named: object) -> None:
        inspect.signature(function).bind(*positional, **named)

    takes(api.load_engine, "path", "config", print)
    takes(score.score_tokens, "p", "c", [1], chunk=None, decode_from=None, on_progress=print)
    takes(inspect_model.inspect, "path", "engram", True, "console")
    takes(make_tiny.make_tiny, "path", seed=1, draft=True, types="", split=1)
    assert EngineServices().embedded_model() == pocket.model_path()
    assert EngineServices().embedded_model().is_file()
