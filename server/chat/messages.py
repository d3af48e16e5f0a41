"""Messages of a request in one shape, whatever spelling the client used.

History is read leniently: a refused history wedges an agent's session for good. Only what cannot
be understood at all is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any, Literal

from engine.errors import RequestError
from server.chat.tools import join_namespace

Role = Literal["system", "user", "assistant", "tool", "latest_reminder"]

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
    "latest_reminder": "latest_reminder",
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_PARTS = {"thinking": "thinking", "redacted_thinking": None}
_PART_SEPARATOR = "\n\n"


@dataclass(frozen=True)
class Call:
    """One function call of an assistant message of the history."""

    id: str
    name: str
    arguments: Any
    """Parsed JSON object; the text as sent if it is none."""

    def parameters(self) -> Iterable[tuple[str, Any]]:
        """(name, value) pairs to write; text that is no object is one parameter `arguments`."""
        if isinstance(self.arguments, Mapping):
            return self.arguments.items()
        return [("arguments", self.arguments)]


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message; `content` has its text parts joined by blank lines."""

    role: Role
    content: str
    reasoning: str | None = None
    """None if the client sent none."""
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """The call a tool message answers; "" if unknown."""
    prefix: bool = False
    """The assistant message is to be continued."""


def read_messages(value: Any) -> list[Message]:
    """Check and normalise the `messages` of a request.

    Raises:
        RequestError: no messages, an unknown role, content that is not text, a malformed call or
            a `prefix` that is not on a final assistant message.
    """
    if not isinstance(value, list):
        raise _error("messages", "is required and must be a list")
    if not value:
        raise _error("messages", "must not be empty")
    messages = [_message(entry, f"messages[{i}]") for i, entry in enumerate(value)]
    for i, message in enumerate(messages):
        if message.prefix and (i + 1 < len(messages) or message.role != "assistant"):
            raise _error(
                f"messages[{i}].prefix", "is only allowed on a final message of role assistant"
            )
    return messages


def _error(where: str, problem: str) -> RequestError:
    return RequestError(f"{where} {problem}", "messages", "invalid_value")


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise _error(where, "must be an object")
    role = _ROLES.get(entry["role"]) if isinstance(entry.get("role"), str) else None
    if role is None:
        raise _error(
            f"{where}.role",
            f"is {short_repr(entry.get('role'))}; needed one of {', '.join(_ROLES)}",
        )
    if entry.get("content") is None and role not in ("assistant", "tool"):
        raise _error(f"{where}.content", "is required and must be a string or a list of parts")
    content, thoughts = _content(entry.get("content"), f"{where}.content")
    if role != "assistant":
        call_id = entry.get("tool_call_id")
        return Message(
            role=role,
            content=content,
            call_id=call_id if isinstance(call_id, str) else "",
            prefix=entry.get("prefix") is True,
        )
    return Message(
        role=role,
        content=content,
        reasoning=_reasoning(entry, thoughts, where),
        calls=_calls(entry, where),
        prefix=entry.get("prefix") is True,
    )


def _content(content: Any, where: str) -> tuple[str, str | None]:
    """(text, reasoning) of a message's content; reasoning comes from thinking parts."""
    if content is None:
        return "", None
    if isinstance(content, str):
        return content, None
    if not isinstance(content, list):
        raise _error(where, "must be a string or a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in _TEXT_PARTS:
            texts.append(_part_text(part, _TEXT_PARTS[kind], f"{where}[{i}]"))
        elif isinstance(kind, str) and kind in _REASONING_PARTS:
            field = _REASONING_PARTS[kind]
            if field is not None:
                thoughts.append(_part_text(part, field, f"{where}[{i}]"))
        elif isinstance(kind, str):
            raise _error(f"{where}[{i}]", f"has type {short_repr(kind)}; this server is text-only")
        else:
            raise _error(f"{where}[{i}]", "must be a text part with a type")
    return _PART_SEPARATOR.join(texts), _PART_SEPARATOR.join(thoughts) if thoughts else None


def _part_text(part: Mapping[str, Any], field: str, where: str) -> str:
    text = part.get(field)
    if not isinstance(text, str):
        raise _error(f"{where}.{field}", "must be a string")
    return text


def _reasoning(entry: Mapping[str, Any], thoughts: str | None, where: str) -> str | None:
    """Reasoning under the first of its names that is present."""
    for name in ("reasoning_content", "reasoning"):
        value = entry.get(name)
        if value is not None and not isinstance(value, str):
            raise _error(f"{where}.{name}", "must be a string")
        if value:
            return value
    if thoughts is not None:
        return thoughts
    present = entry.get("reasoning_content"), entry.get("reasoning")
    return None if present == (None, None) else ""


def _calls(entry: Mapping[str, Any], where: str) -> tuple[Call, ...]:
    calls = entry.get("tool_calls")
    if calls is None:
        single = entry.get("function_call")
        calls = [] if single is None else [{"function": single}]
    if not isinstance(calls, list):
        raise _error(f"{where}.tool_calls", "must be a list")
    return tuple(_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls))


def _call(call: Any, where: str) -> Call:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _error(f"{where}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _error(f"{where}.function.name", "must be a non-empty string")
    call_id = call.get("id")
    namespace = function.get("namespace", call.get("namespace"))
    return Call(
        call_id if isinstance(call_id, str) else "",
        join_namespace(name, namespace),
        read_arguments(function.get("arguments")),
    )


def read_arguments(value: Any) -> Any:
    """Arguments of a history call as an object, or the text as sent if they are none.

    A JSON string that holds a JSON object is decoded twice; missing or empty means no parameters.
    Numbers keep their exact integer value.
    """
    if value is None or isinstance(value, Mapping):
        return value or {}
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not value.strip():
        return {}
    decoded: Any = value
    for _ in range(2):
        try:
            decoded = json.loads(decoded)
        except (ValueError, RecursionError):
            return value
        if isinstance(decoded, Mapping):
            return decoded
        if not isinstance(decoded, str):
            return value
    return value
