"""Reading a request body: one JSON object, whatever its content type says.

Key order and integers of any size are kept, because parts of a request become prompt text.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn

from aiohttp import web

from engine.errors import RequestError

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LARGE_BODY_BYTES = 128 * 1024


async def read_json(request: web.Request) -> dict[str, Any]:
    """Return the body as a dict; large ones are parsed off the event loop.

    Raises:
        RequestError: not decodable by its content encoding, not UTF-8, not JSON, or not an object.
        web.HTTPRequestEntityTooLarge: longer than the server's limit.
    """
    try:
        raw = await request.read()
    except web.RequestPayloadError:
        raise RequestError("The body could not be read as its headers describe it.") from None
    if len(raw) > _LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse_json, raw)
    return parse_json(raw)


def parse_json(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        RequestError: not UTF-8, not JSON, or not an object.
    """
    value = parse_json_value(raw, "The body")
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    return value


def parse_json_value(raw: bytes, source: str, *, strict: bool = True) -> Any:
    """Parse any JSON value; lone surrogates in its texts become U+FFFD.

    Args:
        raw: UTF-8 text, with or without a byte order mark.
        source: what it is, for the complaint.
        strict: refuse NaN and Infinity, which Python reads but JSON does not have.

    Raises:
        RequestError: not UTF-8 or not JSON.
    """
    try:
        refuse = _refuse_constant if strict else None
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=refuse)
        return _without_surrogates(value) if _SURROGATE_ESCAPE.search(raw) else value
    except UnicodeDecodeError as problem:
        raise RequestError(f"{source} is not UTF-8 (byte {problem.start}).") from None
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno} column {problem.colno}"
        raise RequestError(f"{source} is not valid JSON: {problem.msg} ({where}).") from None
    except RecursionError:
        raise RequestError(f"{source} is nested too deeply.") from None
    except ValueError as problem:  # a number with more digits than Python converts
        raise RequestError(f"{source} is not valid JSON: {problem}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _without_surrogates(value: Any) -> Any:
    """Return `value` with every lone surrogate replaced, also in keys."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value
