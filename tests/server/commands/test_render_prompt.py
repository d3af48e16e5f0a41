from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

VECTORS_FILE = Path(__file__).parents[2] / "data" / "chat_vectors" / "render.json"
VECTORS = json.loads(VECTORS_FILE.read_text("utf-8"))["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_vectors_byte_for_byte(ds41: Any, json_file: Any, vector: dict[str, Any]) -> None:
    if "expected_prompt" not in vector:
        pytest.fail("vector without a prompt")
    code, out, err = ds41("render", json_file(vector))
    assert (code, err) == (0, "")
    assert out == vector["expected_prompt"]


def test_plain_body_from_stdin(ds41: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = '{"messages": [{"role": "user", "content": "é"}], "thinking": {"type": "disabled"}}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
    code, out, _ = ds41("render", "-")
    assert (code, out) == (0, "<｜begin▁of▁sentence｜><｜User｜>é<｜Assistant｜></think>")


@pytest.mark.parametrize("value", [[], {}, {"messages": []}, {"request": 5}])
def test_bad_requests(ds41: Any, json_file: Any, value: Any) -> None:
    code, out, err = ds41("render", json_file(value))
    assert (code, out) == (2, "")
    assert err.startswith("ds41: error: ")
    assert err.count("\n") == 1
