from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import RequestError
from server.body import parse_json, parse_json_value


def test_order_and_integers_are_kept() -> None:
    value = parse_json(b'{"b": 123456789012345678901234567890, "a": 1.5}')
    assert list(value) == ["b", "a"]
    assert value["b"] == 123456789012345678901234567890


def test_byte_order_mark() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "x\\ud83d"}', {"a": "x�"}),
        (b'{"\\udc00": ["\\ud800", {"k": "\\ud800!"}]}', {"�": ["�", {"k": "�!"}]}),
        (b'{"a": "\\\\ud800"}', {"a": "\\ud800"}),
    ],
)
def test_surrogates(raw: bytes, value: object) -> None:
    assert parse_json(raw) == value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON: .*line 1 column 2"),
        (b"[1, 2]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": "\xff"}', r"not UTF-8 \(byte 7\)"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_complaints(raw: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        parse_json(raw)


def test_source_is_named() -> None:
    assert parse_json_value(b"[1]", "x.json") == [1]
    with pytest.raises(RequestError, match=r"^x\.json is not valid JSON"):
        parse_json_value(b"[", "x.json")


def test_content_encoding(make_server: Callable[..., Any]) -> None:
    server = make_server()
    body = gzip.compress(b'{"prompt": "a", "max_tokens": 1}')
    encoding = {"Content-Encoding": "gzip"}
    assert server.post("/v1/completions", body, **encoding)[0] == 200
    status, _, answer = server.post("/v1/completions", b"not gzip", **encoding)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert "as its headers describe" in answer["error"]["message"]
