"""Rendering and parsing of JSON files, for debugging prompts from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from reprlib import repr as short_repr
from typing import Any

from engine.errors import RequestError
from server.chat.events import ParserSetup
from server.chat.parse import ChatParser
from server.chat.render import initial_setup, render
from server.chat.thinking import resolve_thinking
from server.chat.tools import resolve_tools
from server.chat.validate import stop_strings


def render_file(data: Any) -> str:
    """The exact prompt text of a request.

    Args:
        data: a chat request body, or an object with it under `request` and optionally
            `add_generation_prompt`.

    Raises:
        RequestError: the request is wrong.
    """
    data = _object(data)
    if "request" not in data or "messages" in data:
        return render(data).text
    flag = data.get("add_generation_prompt")
    if flag is not None and not isinstance(flag, bool):
        raise RequestError("add_generation_prompt must be true or false", "add_generation_prompt")
    return render(_object(data["request"]), add_generation_prompt=flag).text


def parse_file(data: Any) -> dict[str, Any]:
    """The reply that a generated text stands for.

    Args:
        data: an object with `model_output` (the text after the generation header, without end of
            sentence), `request` (optional; thinking, tools, tool_choice and stop matter, and
            messages if it has any) and `engine_finish` (optional, "stop" or "length").

    Returns:
        `reasoning_content`, `content`, `tool_calls` (each with `name`, `arguments` as JSON text,
        and `namespace` if there is one) and `finish_reason`.

    Raises:
        RequestError: a field is missing or wrong.
    """
    data = _object(data)
    text = data.get("model_output")
    if not isinstance(text, str):
        raise RequestError("model_output is required and must be a string", "model_output")
    finish = data.get("engine_finish", "stop")
    if finish not in ("stop", "length"):
        raise RequestError(
            f"engine_finish must be stop or length; found {short_repr(finish)}", "engine_finish"
        )
    request = _object(data.get("request") or {})
    parser = ChatParser(_setup(request), stop=stop_strings(request))
    parser.feed(text)
    _, finish_reason = parser.finish(finish)
    reply = parser.reply()
    calls = []
    for call in reply.tool_calls:
        entry = {"name": call.name, "arguments": call.arguments}
        if call.namespace is not None:
            entry["namespace"] = call.namespace
        calls.append(entry)
    return {
        "reasoning_content": reply.reasoning,
        "content": reply.content,
        "tool_calls": calls,
        "finish_reason": finish_reason,
    }


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RequestError("a JSON object is needed")
    return value


def _setup(request: Mapping[str, Any]) -> ParserSetup:
    if request.get("messages"):
        setup = render(request).setup
    else:
        setup = initial_setup(resolve_thinking(request), resolve_tools(request))
    # The text is complete: a call that had to be forced after the reasoning is already in it.
    return replace(setup, must_call=False)
