"""`response_format`: the prompt section that asks for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from server.chat.tools import dump_json

_HEAD = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


def format_section(body: Mapping[str, Any]) -> str | None:
    """The section for the system part, or None if the reply is free text.

    Raises:
        RequestError: `response_format` is malformed or of an unknown type.
    """
    response_format = body.get("response_format")
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return _HEAD + dump_json({"type": "json_object"})
    if kind == "json_schema":
        outer = response_format.get("json_schema")
        schema = outer.get("schema") if isinstance(outer, Mapping) else None
        if not isinstance(schema, Mapping):
            raise _error("response_format.json_schema.schema must be an object")
        return _HEAD + dump_json(schema)
    raise _error("response_format.type must be text, json_object or json_schema")


def _error(problem: str) -> RequestError:
    return RequestError(problem, "response_format", "invalid_value")
