"""From request fields to the engine's SamplingParams, and the number of tokens to generate.

Both generation endpoints read the same fields: OpenAI's, and those that vLLM and SGLang added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine.errors import RequestError
from engine.request import SamplingParams
from server.fields import (
    read_bool,
    read_int,
    read_mapping,
    read_number,
    read_token_ids,
    wrong,
)

MAX_STOP_STRINGS = 16
MAX_CHOICES = 128
_SEED_MASK = 2**63 - 1


def read_sampling(
    body: Mapping[str, Any],
    vocab_size: int,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Build the parameters of one generation.

    Args:
        body: the request.
        vocab_size: ids at or above it are refused.
        max_tokens: tokens to generate, already fitted to the context.
        logprobs: alternatives to report per generated token, None for no report.
        prompt_logprobs: the same for prompt tokens.

    Raises:
        RequestError: a field is out of range or of a wrong type; names it.
    """
    top_k = read_int(body, "top_k", low=-1)
    seed = read_int(body, "seed")
    min_tokens = read_int(body, "min_tokens", low=0) or 0
    stop_ids = body.get("stop_token_ids")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=read_number(body, "temperature", 1.0),
        top_k=max(0, top_k or 0),
        top_p=read_number(body, "top_p", 1.0),
        min_p=read_number(body, "min_p", 0.0),
        presence_penalty=read_number(body, "presence_penalty", 0.0),
        frequency_penalty=read_number(body, "frequency_penalty", 0.0),
        repetition_penalty=read_number(body, "repetition_penalty", 1.0),
        # Any 64-bit integer is a seed; generators want a non-negative one.
        seed=None if seed is None else seed & _SEED_MASK,
        logit_bias=read_logit_bias(body, vocab_size),
        stop_token_ids=()
        if stop_ids is None
        else tuple(read_token_ids(stop_ids, "stop_token_ids", vocab_size)),
        ignore_eos=read_bool(body, "ignore_eos"),
        min_tokens=min(min_tokens, max_tokens),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def read_logit_bias(body: Mapping[str, Any], vocab_size: int) -> dict[int, float]:
    """Return `logit_bias` with integer keys.

    Raises:
        RequestError: a key is not a token id or a value not a number.
    """
    bias: dict[int, float] = {}
    given = read_mapping(body, "logit_bias")
    for key, value in given.items():
        is_number = len(key) < 10 and key.isascii() and key.isdecimal()
        if not is_number or int(key) >= vocab_size:
            raise wrong("logit_bias", f"has the key {key!r}, which is not a token id")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong("logit_bias", f"of token {key} must be a number")
        bias[int(key)] = max(-1e9, min(1e9, value))
    return bias


def read_stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stop strings.

    Raises:
        RequestError: not a string or a list of at most 16 non-empty strings.
    """
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("stop", "must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise wrong("stop", f"may hold at most {MAX_STOP_STRINGS} strings, found {len(stops)}")
    if "" in stops:
        raise wrong("stop", "must not hold an empty string")
    return tuple(stops)


def read_choice_count(body: Mapping[str, Any]) -> int:
    """Return `n`, 1 if absent.

    Raises:
        RequestError: below 1 or above 128.
    """
    count = read_int(body, "n", low=1, high=MAX_CHOICES)
    return 1 if count is None else count


def for_choice(params: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of choice `index`: with a seed, every choice gets its own."""
    if index == 0 or params.seed is None:
        return params
    return dataclasses.replace(params, seed=(params.seed + index) & _SEED_MASK)


def refuse_overlong_text(
    num_chars: int, longest_token: int, max_model_len: int, *, param: str
) -> None:
    """Refuse a text that cannot fit the context however it is cut, before it is encoded.

    Encoding tens of megabytes takes minutes; this takes no time.

    Args:
        num_chars: characters of the text.
        longest_token: most characters that one token stands for.
        max_model_len: tokens of prompt and answer together.
        param: "messages" or "prompt", for the complaint.

    Raises:
        RequestError: `context_length_exceeded`, as from `fit_max_tokens`.
    """
    least = -(-num_chars // longest_token)
    if least > max_model_len:
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, the "
            f"{num_chars} characters in the {param} are at least {least} tokens. Please reduce "
            f"the length of the {param}.",
            param,
            "context_length_exceeded",
        )


def fit_max_tokens(
    asked: int | None, default: int, num_prompt: int, max_model_len: int, *, param: str
) -> int:
    """Return how many tokens may be generated: what was asked for, lowered to the context left.

    Args:
        asked: the client's number, None if it gave none.
        default: used then.
        num_prompt: prompt tokens.
        max_model_len: tokens of prompt and answer together.
        param: "messages" or "prompt", for the complaint.

    Raises:
        RequestError: `context_length_exceeded`, if not even one token fits. Agents shorten the
            conversation when they see this code or sentence.
    """
    wanted = default if asked is None else asked
    room = max_model_len - num_prompt
    least = min(1, wanted)
    if room < least:
        completion = least if asked is None else asked
        raise RequestError(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {num_prompt + completion} tokens ({num_prompt} in the {param}, "
            f"{completion} in the completion). Please reduce the length of the {param} or "
            "completion.",
            param,
            "context_length_exceeded",
        )
    return min(wanted, room)
