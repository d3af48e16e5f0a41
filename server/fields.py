"""Typed reading of optional fields of a JSON request; null counts as absent.

Every complaint is a RequestError that names the field, so that `error.param` is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError

INT_LIMIT = 2**63
"""Integers outside plus or minus this are refused where a number is meant."""


def wrong(name: str, message: str) -> RequestError:
    """A complaint about the value of field `name`."""
    return RequestError(f"{name} {message}", name, "invalid_value")


def unsupported(name: str, message: str) -> RequestError:
    """A field or option that this server does not have."""
    return RequestError(message, name, "unsupported_parameter")


def read_bool(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a boolean field.

    Raises:
        RequestError: neither true nor false.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value


def read_int(
    body: Mapping[str, Any], name: str, *, low: int = -INT_LIMIT, high: int = INT_LIMIT
) -> int | None:
    """Return an integer field between `low` and `high`, or None if absent; 3.0 counts as 3.

    Raises:
        RequestError: another type, or out of range.
    """
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "must be an integer")
    if value < low:
        raise wrong(name, f"must be at least {low}")
    if value > high:
        raise wrong(name, f"must be at most {high}")
    return value


def read_number(body: Mapping[str, Any], name: str, default: float) -> float:
    """Return a finite number field as float.

    Raises:
        RequestError: another type, or not finite.
    """
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(name, "must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(name, "must be a finite number")
    return number


def read_text(body: Mapping[str, Any], name: str) -> str | None:
    """Return a string field, or None if absent.

    Raises:
        RequestError: another type.
    """
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong(name, "must be a string")
    return value


def read_mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object field, empty if absent.

    Raises:
        RequestError: another type.
    """
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(name, "must be an object")
    return value


def read_token_ids(value: Any, name: str, vocab_size: int) -> list[int]:
    """Check a list of token ids.

    Raises:
        RequestError: not a list of integers of the vocabulary; names the field `name`.
    """
    if not isinstance(value, list):
        raise wrong(name, "must be a list of token ids")
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong(name, "must hold only integer token ids")
        if not 0 <= token < vocab_size:
            raise wrong(name, f"holds {token}, which is not a token id below {vocab_size}")
    return value
