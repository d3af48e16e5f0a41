"""Checks of the request fields that do not shape the prompt; `render` checks those that do.

A field that is null counts as absent, and an unknown field is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as short_repr
from typing import Any

from engine.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20

_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
_INTEGERS: Mapping[str, tuple[int, int | None]] = {
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
    "n": (1, None),
    "top_k": (-1, None),
    "min_tokens": (0, None),
    "seed": (-(2**63), 2**64 - 1),
    "top_logprobs": (0, MAX_TOP_LOGPROBS),
}
"""Lowest and highest value; None means no upper limit."""
_BOOLEANS = ("stream", "ignore_eos", "logprobs")
_UNSUPPORTED = ("audio", "web_search_options")


def validate_request(body: Mapping[str, Any]) -> None:
    """Check sampling, length, stop and stream fields of a chat request.

    Raises:
        RequestError: a field is wrong; `param` names it.
    """
    if not isinstance(body, Mapping):
        raise RequestError("the request must be a JSON object", None, "invalid_value")
    for name, (low, high) in _NUMBERS.items():
        value = _number(body, name)
        if value is not None and not low <= value <= high:
            raise _error(name, f"must be between {low:g} and {high:g}")
    top_p = _number(body, "top_p")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise _error("top_p", "must be above 0 and at most 1")
    penalty = _number(body, "repetition_penalty")
    if penalty is not None and not 0.0 < penalty < float("inf"):
        raise _error("repetition_penalty", "must be above 0")
    for name, (lowest, highest) in _INTEGERS.items():
        _integer(body, name, lowest, highest)
    for name in _BOOLEANS:
        value = body.get(name)
        if value is not None and not isinstance(value, bool):
            raise _error(name, "must be true or false")
    if body.get("top_logprobs") is not None and body.get("logprobs") is not True:
        raise _error("top_logprobs", "needs logprobs to be true")
    stop_strings(body)
    _stop_token_ids(body)
    _logit_bias(body)
    _stream_options(body)
    for name in _UNSUPPORTED:
        if body.get(name) is not None:
            raise _unsupported(name, "is not supported: this server is text-only")
    if body.get("modalities") not in (None, ["text"]):
        raise _unsupported("modalities", 'must be ["text"]: this server is text-only')


def stop_strings(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The `stop` field as a tuple.

    Raises:
        RequestError: it is neither a string nor a list of at most 16 strings, or one is empty.
    """
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _error("stop", "must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise _error("stop", f"has {len(stops)} strings; at most {MAX_STOP_STRINGS} are allowed")
    if "" in stops:
        raise _error("stop", "must not contain an empty string")
    return tuple(stops)


def _error(name: str, problem: str) -> RequestError:
    return RequestError(f"{name} {problem}", name, "invalid_value")


def _unsupported(name: str, problem: str) -> RequestError:
    return RequestError(f"{name} {problem}", name, "unsupported_parameter")


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise _error(name, "must be a number")
    return value


def _integer(body: Mapping[str, Any], name: str, low: int, high: int | None) -> None:
    value = body.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise _error(name, "must be an integer")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise _error(name, f"must be {limits}")


def _stop_token_ids(body: Mapping[str, Any]) -> None:
    value = body.get("stop_token_ids")
    if value is None:
        return
    if not isinstance(value, list) or not all(
        isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in value
    ):
        raise _error("stop_token_ids", "must be a list of token ids")


def _logit_bias(body: Mapping[str, Any]) -> None:
    value = body.get("logit_bias")
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise _error("logit_bias", "must map token ids to numbers")
    for token, bias in value.items():
        if not (isinstance(token, str) and token.isascii() and token.isdigit()):
            raise _error("logit_bias", f"has the key {short_repr(token)}, which is no token id")
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
            raise _error("logit_bias", f"of token {token} must be between -100 and 100")


def _stream_options(body: Mapping[str, Any]) -> None:
    value = body.get("stream_options")
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise _error("stream_options", "must be an object")
    if body.get("stream") is not True:
        raise _error("stream_options", "needs stream to be true")
    for name in ("include_usage", "continuous_usage_stats"):
        if value.get(name) is not None and not isinstance(value[name], bool):
            raise _error("stream_options", f"has {name}, which must be true or false")
