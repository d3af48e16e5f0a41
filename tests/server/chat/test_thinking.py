from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.chat.thinking import EFFORTS, Thinking, effort_line, resolve_thinking

OFF = Thinking(False, 0)


def kwargs(**values: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": values}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, Thinking(True, 75)),
        ({"thinking": None, "reasoning_effort": None, "reasoning": None}, Thinking(True, 75)),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "adaptive"}}, Thinking(True, 75)),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, Thinking(True, 75)),
        ({"thinking": False}, OFF),
        ({"enable_thinking": False}, OFF),
        (kwargs(thinking=False), OFF),
        (kwargs(enable_thinking=False), OFF),
        (kwargs(reasoning_effort="none"), OFF),
        (kwargs(reasoning_effort="max"), Thinking(True, 100)),
        ({"reasoning_effort": "none"}, OFF),
        ({"reasoning": {"effort": "none"}}, OFF),
        ({"reasoning": {"effort": "low"}}, Thinking(True, 50)),
        ({"reasoning_effort": 1}, Thinking(True, 1)),
        ({"reasoning_effort": 100}, Thinking(True, 100)),
        # Two sources that disagree.
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, OFF),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, OFF),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, Thinking(True, 75)),
        ({"enable_thinking": False, "reasoning_effort": "high"}, OFF),
        ({"reasoning_effort": "low", "reasoning": {"effort": "max"}}, Thinking(True, 50)),
        ({"reasoning_effort": "low", **kwargs(thinking=False)}, Thinking(True, 50)),
        ({"reasoning_effort": "none", **kwargs(thinking=True)}, OFF),
        ({"enable_thinking": True, **kwargs(enable_thinking=False)}, Thinking(True, 75)),
        ({"reasoning_effort": "max", **kwargs(reasoning_effort="low")}, Thinking(True, 100)),
        (kwargs(thinking=False, reasoning_effort="max"), OFF),
        (kwargs(thinking=True, reasoning_effort="none"), Thinking(True, 75)),
    ],
)
def test_switches_and_their_precedence(body: dict[str, Any], expected: Thinking) -> None:
    assert resolve_thinking(body) == expected


def test_server_default_applies_only_if_the_request_says_nothing() -> None:
    assert resolve_thinking({}, default=False) == OFF
    assert resolve_thinking({"reasoning_effort": "low"}, default=False) == Thinking(True, 50)


def test_effort_names() -> None:
    assert {name: resolve_thinking({"reasoning_effort": name}).effort for name in EFFORTS} == {
        "none": 0,
        "minimal": 50,
        "low": 50,
        "medium": 75,
        "high": 75,
        "xhigh": 75,
        "max": 100,
        "ultra": 100,
    }


@pytest.mark.parametrize("effort", ["", "HIGH", "42", 0, 101, -1, 50.0, True, [], {}])
@pytest.mark.parametrize("where", ["top", "reasoning", "kwargs"])
def test_unknown_effort(effort: Any, where: str) -> None:
    body = {
        "top": {"reasoning_effort": effort},
        "reasoning": {"reasoning": {"effort": effort}},
        "kwargs": kwargs(reasoning_effort=effort),
    }[where]
    # Refused even where it would have no effect.
    with pytest.raises(RequestError) as error:
        resolve_thinking({"thinking": {"type": "disabled"}, **body})
    assert error.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"thinking": {"type": "sometimes"}}, "thinking"),
        ({"thinking": {}}, "thinking"),
        ({"thinking": 1}, "thinking"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"reasoning": "high"}, "reasoning"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        (kwargs(thinking=0), "chat_template_kwargs"),
    ],
)
def test_malformed_switches(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        resolve_thinking(body)
    assert (error.value.param, error.value.status) == (param, 400)


def test_effort_line() -> None:
    assert effort_line(42) == (
        "Reasoning Effort: 42 "
        "(range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    )
