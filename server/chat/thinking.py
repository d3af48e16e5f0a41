"""Whether the model thinks, and how hard: every spelling that clients use.

Precedence, highest first: `thinking` (DeepSeek, Anthropic), `enable_thinking`, the effort
(`reasoning_effort`, then `reasoning.effort`), the same names inside `chat_template_kwargs`, the
server's default. An effort of `none` switches thinking off, any other switches it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any

from engine.errors import RequestError

EFFORTS: Mapping[str, int] = {
    "none": 0,
    "minimal": 50,
    "low": 50,
    "medium": 75,
    "high": 75,
    "xhigh": 75,
    "max": 100,
    "ultra": 100,
}
"""Effort names and the number written into the prompt; 0 means no thinking."""

DEFAULT_EFFORT = EFFORTS["high"]

_TYPES = {"disabled": False, "enabled": True, "adaptive": True}


@dataclass(frozen=True)
class Thinking:
    """The resolved switch."""

    enabled: bool
    effort: int
    """1..100 if enabled, else 0."""


def effort_line(effort: int) -> str:
    """The line that tells the model its effort (1..100), with its blank line."""
    return (
        f"Reasoning Effort: {effort} "
        "(range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    )


def resolve_thinking(body: Mapping[str, Any], default: bool = True) -> Thinking:
    """Read all switches of a request.

    Args:
        body: the request.
        default: whether to think if the request does not say.

    Raises:
        RequestError: a switch has a value it cannot have.
    """
    kwargs = _mapping(body, "chat_template_kwargs")
    reasoning = _mapping(body, "reasoning")
    effort = _first(
        _effort(body.get("reasoning_effort")),
        _effort(reasoning.get("effort")),
    )
    kwargs_effort = _effort(kwargs.get("reasoning_effort"))
    switch = _first(
        _thinking_type(body.get("thinking")),
        _flag(body, "enable_thinking", "enable_thinking"),
        None if effort is None else effort > 0,
        _flag(kwargs, "thinking", "chat_template_kwargs"),
        _flag(kwargs, "enable_thinking", "chat_template_kwargs"),
        None if kwargs_effort is None else kwargs_effort > 0,
        default,
    )
    if not switch:
        return Thinking(False, 0)
    return Thinking(True, _first(effort or None, kwargs_effort or None, DEFAULT_EFFORT))


def _first(*values: Any) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), None)


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} must be an object", name, "invalid_value")
    return value


def _flag(values: Mapping[str, Any], name: str, param: str) -> bool | None:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", param, "invalid_value")
    return value


def _thinking_type(value: Any) -> bool | None:
    """`thinking`: an object with a type; a plain boolean is accepted too."""
    if value is None or isinstance(value, bool):
        return value
    kind = value.get("type") if isinstance(value, Mapping) else value
    if not isinstance(kind, str) or kind not in _TYPES:
        raise RequestError(
            f"thinking.type must be one of {', '.join(_TYPES)}; found {short_repr(kind)}",
            "thinking",
            "invalid_value",
        )
    return _TYPES[kind]


def _effort(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value in EFFORTS:
        return EFFORTS[value]
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 100:
        return value
    raise RequestError(
        f"reasoning_effort must be one of {', '.join(EFFORTS)} or an integer from 1 to 100; "
        f"found {short_repr(value)}",
        "reasoning_effort",
        "invalid_value",
    )
