from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

VECTORS_FILE = Path(__file__).parents[2] / "data" / "chat_vectors" / "parse.json"
VECTORS = json.loads(VECTORS_FILE.read_text("utf-8"))["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_vectors(ds41: Any, json_file: Any, vector: dict[str, Any]) -> None:
    code, out, err = ds41("parse", json_file(vector))
    assert (code, err) == (0, "")
    reply, expected = json.loads(out), vector["expected"]
    for name in ("reasoning_content", "content", "finish_reason"):
        assert reply[name] == expected[name]
    assert len(reply["tool_calls"]) == len(expected["tool_calls"])
    for call, wanted in zip(reply["tool_calls"], expected["tool_calls"], strict=True):
        assert call["name"] == wanted["name"]
        is_text = isinstance(wanted["arguments"], str)
        arguments = call["arguments"] if is_text else json.loads(call["arguments"])
        assert arguments == wanted["arguments"]


@pytest.mark.parametrize("value", [[], {}, {"model_output": 5}, {"model_output": "", "request": 1}])
def test_bad_input(ds41: Any, json_file: Any, value: Any) -> None:
    code, out, err = ds41("parse", json_file(value))
    assert (code, out) == (2, "")
    assert err.startswith("ds41: error: ")
