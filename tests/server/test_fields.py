from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import RequestError
from server.fields import (
    read_bool,
    read_int,
    read_mapping,
    read_number,
    read_text,
    read_token_ids,
    unsupported,
)


def test_values() -> None:
    body = {"b": True, "i": 3, "f": 3.0, "x": 0.5, "t": "s", "m": {"a": 1}}
    assert read_bool(body, "b") is True
    assert read_int(body, "i") == 3
    assert read_int(body, "f") == 3
    assert read_number(body, "x", 1.0) == 0.5
    assert read_number(body, "i", 1.0) == 3.0
    assert read_text(body, "t") == "s"
    assert read_mapping(body, "m") == {"a": 1}
    assert read_token_ids([0, 9], "t", 10) == [0, 9]


@pytest.mark.parametrize("body", [{}, {"x": None}])
def test_null_is_absent(body: dict[str, Any]) -> None:
    assert read_bool(body, "x", True) is True
    assert read_int(body, "x") is None
    assert read_number(body, "x", 0.25) == 0.25
    assert read_text(body, "x") is None
    assert read_mapping(body, "x") == {}


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (read_bool, 1),
        (read_bool, "true"),
        (read_int, True),
        (read_int, 1.5),
        (read_int, "1"),
        (read_int, 2**70),
        (read_int, float("inf")),
        (lambda body, name: read_int(body, name, low=0), -1),
        (lambda body, name: read_int(body, name, high=5), 6),
        (lambda body, name: read_number(body, name, 0.0), True),
        (lambda body, name: read_number(body, name, 0.0), "1"),
        (lambda body, name: read_number(body, name, 0.0), float("inf")),
        (lambda body, name: read_number(body, name, 0.0), float("nan")),
        (lambda body, name: read_number(body, name, 0.0), 10**400),
        (read_text, 5),
        (read_mapping, []),
        (lambda body, name: read_token_ids(body[name], name, 10), 5),
        (lambda body, name: read_token_ids(body[name], name, 10), [10]),
        (lambda body, name: read_token_ids(body[name], name, 10), [-1]),
        (lambda body, name: read_token_ids(body[name], name, 10), [True]),
        (lambda body, name: read_token_ids(body[name], name, 10), [1.0]),
    ],
)
def test_complaints_name_the_field(read: Callable[..., Any], value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read({"field": value}, "field")
    assert caught.value.param == "field"
    assert caught.value.status == 400
    assert caught.value.code == "invalid_value"


def test_unsupported() -> None:
    problem = unsupported("suffix", "no")
    assert (problem.param, problem.code) == ("suffix", "unsupported_parameter")
