"""Tools: declarations, `tool_choice`, and the block that shows them to the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any, Literal

from engine.errors import RequestError
from server.chat.events import Tool
from server.chat.spans import DSML, THINK_CLOSE, THINK_OPEN, SpanBuilder

NAMESPACE_SEPARATOR = "::"

_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,64}")
_MODES = ("none", "auto", "required")

_BLOCK_HEAD = f"""## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), \
pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK_OPEN}), you MUST output your complete reasoning \
inside {THINK_OPEN}...{THINK_CLOSE} BEFORE any tool calls or final response.

Otherwise, output directly after {THINK_CLOSE} with tool calls or final response.

### Available Tool Schemas

"""
_BLOCK_TAIL = (
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas "
    "to invoke tool calls.\n"
)


@dataclass(frozen=True)
class ToolOptions:
    """Tools as they take part in one request."""

    tools: tuple[Tool, ...]
    """Shown to the model; empty if none are declared or none may be called."""
    mode: Literal["none", "auto", "required"]
    forced_name: str | None
    """Set for a named choice, whose mode is `required`."""
    parallel: bool


def dump_json(value: Any) -> str:
    """JSON as the prompt format wants it: `", "` and `": "`, no ASCII escapes, order kept."""
    return json.dumps(value, ensure_ascii=False)


def resolve_tools(body: Mapping[str, Any]) -> ToolOptions:
    """Read `tools`, `tool_choice` and `parallel_tool_calls` (and the older `functions`).

    Raises:
        RequestError: a declaration or the choice is malformed, or names an unknown function.
    """
    param, declared = "tools", body.get("tools")
    if declared is None and body.get("functions") is not None:
        param, declared = "functions", _functions(body["functions"])
    tools = _tools(declared, param)
    choice_param, choice = "tool_choice", body.get("tool_choice")
    if choice is None and body.get("function_call") is not None:
        choice_param, choice = "function_call", body["function_call"]
    parallel = body.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise RequestError(
            "parallel_tool_calls must be true or false", "parallel_tool_calls", "invalid_value"
        )
    mode, name = _choice(choice, choice_param)
    if not tools or mode == "none":
        return ToolOptions((), "none", None, parallel is not False)
    if name is not None:
        tools = tuple(tool for tool in tools if tool.name == name)
        if not tools:
            raise RequestError(
                f"{choice_param} names {short_repr(name)}, which is not declared in {param}",
                choice_param,
                "invalid_value",
            )
    return ToolOptions(tools, mode, name, parallel is not False)


def write_tools_block(out: SpanBuilder, tools: tuple[Tool, ...]) -> None:
    """Append the description of the call syntax and one JSON line per tool."""
    out.fixed(_BLOCK_HEAD)
    lines = (
        dump_json(
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            }
        )
        for tool in tools
    )
    out.plain("\n".join(lines))
    out.fixed(_BLOCK_TAIL)


def forced_call_text(forced_name: str | None) -> str:
    """What opens a demanded call after the answer's start; for a named one up to its header."""
    block = f"\n\n<{DSML} calls>\n"
    if forced_name is None:
        return block
    return f'{block}<{DSML} invoke name="{forced_name}">\n'


def join_namespace(name: str, namespace: Any) -> str:
    """The name as the prompt spells it."""
    if isinstance(namespace, str) and namespace:
        return f"{namespace}{NAMESPACE_SEPARATOR}{name}"
    return name


def split_namespace(name: str, tools: tuple[Tool, ...]) -> tuple[str, str | None]:
    """(name, namespace) of a call; a declared name is never split."""
    namespace, separator, bare = name.partition(NAMESPACE_SEPARATOR)
    if not (separator and namespace and bare) or any(tool.name == name for tool in tools):
        return name, None
    return bare, namespace


def _functions(functions: Any) -> list[Any]:
    if not isinstance(functions, list):
        raise RequestError("functions must be a list", "functions", "invalid_value")
    return [{"type": "function", "function": function} for function in functions]


def _tools(declared: Any, param: str) -> tuple[Tool, ...]:
    if declared is None:
        return ()
    if not isinstance(declared, list):
        raise RequestError(f"{param} must be a list", param, "invalid_value")
    tools = tuple(_tool(entry, f"{param}[{i}]", param) for i, entry in enumerate(declared))
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(
                f"{param}: the name {short_repr(name)} is used twice; names must be unique",
                param,
                "invalid_value",
            )
    return tools


def _tool(entry: Any, where: str, param: str) -> Tool:
    def fail(problem: str) -> RequestError:
        return RequestError(f"{where}{problem}", param, "invalid_value")

    if not isinstance(entry, Mapping):
        raise fail(" must be an object")
    if entry.get("type", "function") != "function":
        raise fail(f".type is {short_repr(entry.get('type'))}; only function tools are supported")
    function = entry.get("function")
    if not isinstance(function, Mapping):
        raise fail(".function must be an object")
    name = function.get("name")
    if isinstance(name, str):
        name = join_namespace(name, function.get("namespace", entry.get("namespace")))
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise fail(
            f".function.name is {short_repr(name)}; "
            "needed 1 to 64 characters of letters, digits and _.:/-"
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise fail(".function.description must be a string")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise fail(".function.parameters must be an object")
    return Tool(name, description or "", parameters or {})


def _choice(choice: Any, param: str) -> tuple[Literal["none", "auto", "required"], str | None]:
    """Mode and, for a named choice, the name."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str) and choice in _MODES:
        return choice, None  # type: ignore[return-value]
    if isinstance(choice, Mapping) and choice.get("type", "function") == "function":
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            return "required", join_namespace(name, function.get("namespace"))
    raise RequestError(
        f"{param} must be none, auto, required or an object naming a function",
        param,
        "invalid_value",
    )
