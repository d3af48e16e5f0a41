from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from server.chat.response_format import format_section

HEAD = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


@pytest.mark.parametrize("value", [None, {"type": "text"}])
def test_free_text_has_no_section(value: Any) -> None:
    assert format_section({"response_format": value}) is None


def test_sections() -> None:
    schema = {"z": "é", "a": [1, None]}
    outer = {"name": "n", "strict": True, "schema": schema}
    body = {"response_format": {"type": "json_schema", "json_schema": outer}}
    assert format_section(body) == HEAD + '{"z": "é", "a": [1, null]}'
    assert format_section({"response_format": {"type": "json_object"}}) == (
        HEAD + '{"type": "json_object"}'
    )


@pytest.mark.parametrize(
    "value",
    [
        "json_object",
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"schema": "x"}},
    ],
)
def test_malformed(value: Any) -> None:
    with pytest.raises(RequestError) as error:
        format_section({"response_format": value})
    assert error.value.param == "response_format"
