from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.chat import Tool
from server.chat.tools import (
    forced_call_text,
    join_namespace,
    resolve_tools,
    split_namespace,
)


def declared(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def test_declarations_keep_name_description_parameters_only() -> None:
    function = {
        "strict": True,
        "parameters": {"z": 1, "a": 2},
        "name": "f",
        "description": None,
        "other": 1,
    }
    options = resolve_tools({"tools": [{"type": "function", "function": function}]})
    assert options.tools == (Tool("f", "", {"z": 1, "a": 2}),)
    assert list(options.tools[0].parameters) == ["z", "a"]
    assert (options.mode, options.forced_name, options.parallel) == ("auto", None, True)


@pytest.mark.parametrize("name", ["a", "A-z_09", "ns::f", "a.b", "a:b", "a/b", "x" * 64])
def test_good_names(name: str) -> None:
    assert resolve_tools({"tools": declared(name)}).tools[0].name == name


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a\n", 'a"', "｜DSML｜", None, 3])
def test_bad_names(name: Any) -> None:
    with pytest.raises(RequestError) as error:
        resolve_tools({"tools": declared(name)})
    assert error.value.param == "tools"


@pytest.mark.parametrize(
    ("choice", "mode", "forced"),
    [
        (None, "auto", None),
        ("auto", "auto", None),
        ("required", "required", None),
        ({"type": "function", "function": {"name": "g"}}, "required", "g"),
        ({"type": "function", "name": "g"}, "required", "g"),
    ],
)
def test_choice(choice: Any, mode: str, forced: str | None) -> None:
    options = resolve_tools({"tools": declared("f", "g"), "tool_choice": choice})
    assert (options.mode, options.forced_name) == (mode, forced)
    assert [tool.name for tool in options.tools] == (["g"] if forced else ["f", "g"])


@pytest.mark.parametrize("tools", [None, [], declared("f")])
def test_nothing_is_shown_without_tools_or_with_choice_none(tools: Any) -> None:
    choice = "none" if tools else "required"
    options = resolve_tools({"tools": tools, "tool_choice": choice})
    assert (options.tools, options.mode) == ((), "none")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"function": {"name": "f", "description": 1}}]}, "tools"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools"),
        ({"tools": declared("f", "f")}, "tools"),
        ({"tools": declared("f"), "tool_choice": "any"}, "tool_choice"),
        ({"tools": declared("f"), "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": declared("f"), "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
        ({"tools": declared("f"), "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": "f"}, "functions"),
        ({"functions": [{"name": "a b"}]}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call"),
    ],
)
def test_malformed(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        resolve_tools(body)
    assert error.value.param == param


def test_older_functions() -> None:
    body = {"functions": [{"name": "f"}, {"name": "g"}], "function_call": {"name": "g"}}
    options = resolve_tools(body)
    assert [tool.name for tool in options.tools] == ["g"] and options.forced_name == "g"


def test_namespaces() -> None:
    tools = resolve_tools({"tools": [{"function": {"name": "f", "namespace": "ns"}}]}).tools
    assert tools[0].name == "ns::f"
    assert split_namespace("ns::f", tools) == ("ns::f", None)
    assert split_namespace("ns::g", tools) == ("g", "ns")
    assert split_namespace("g", tools) == ("g", None)
    assert join_namespace("g", "ns") == "ns::g" and join_namespace("g", None) == "g"


def test_forced_call_text() -> None:
    assert forced_call_text(None) == "\n\n<｜DSML｜ calls>\n"
    assert forced_call_text("f") == '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
