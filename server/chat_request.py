"""Reading a /v1/chat/completions request: prompt, sampling, choices and how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.request import MAX_LOGPROBS
from server.chat import RenderedPrompt, prompt_ids, render, stop_strings, validate_request
from server.choices import Choice
from server.completion_request import StreamOptions, read_stream_options
from server.fields import read_bool, read_int, read_mapping, wrong
from server.sampling import (
    fit_max_tokens,
    for_choice,
    read_choice_count,
    read_sampling,
    refuse_overlong_text,
)

if TYPE_CHECKING:
    from engine.api import Engine

MAX_TOKENS_THINKING = 65536
MAX_TOKENS_THINKING_MAX = 131072
MAX_TOKENS_ANSWER = 8192
EFFORT_MAX = 100


@dataclass(frozen=True)
class ChatRequest:
    """A checked request."""

    prompt: RenderedPrompt
    choices: list[Choice]
    stops: tuple[str, ...]
    with_logprobs: bool
    strip_fence: bool
    """Whether a code fence around a JSON answer is removed (never in a stream)."""
    stream: bool
    stream_options: StreamOptions


def read_chat(body: Mapping[str, Any], engine: Engine) -> ChatRequest:
    """Check a request, render and encode its prompt; run it in a thread, prompts may be long.

    Raises:
        RequestError: a field is wrong or unsupported, or the prompt does not fit; names the field.
    """
    validate_request(body)
    asked = _read_max_tokens(body)
    logprobs = _read_logprobs(body)
    count = read_choice_count(body)
    stream = read_bool(body, "stream")
    stream_options = read_stream_options(body)
    try:
        prompt = render(body)
    except RecursionError:
        raise wrong("messages", "or tools are nested too deeply") from None
    num_chars = sum(len(text) for text, _ in prompt.spans)
    refuse_overlong_text(
        num_chars, engine.tokenizer.longest_token, engine.max_model_len, param="messages"
    )
    token_ids = prompt_ids(prompt, engine.tokenizer)
    max_tokens = fit_max_tokens(
        asked,
        default_max_tokens(prompt),
        len(token_ids),
        engine.max_model_len,
        param="messages",
    )
    params = read_sampling(
        body, engine.tokenizer.vocab_size, max_tokens=max_tokens, logprobs=logprobs
    )
    return ChatRequest(
        prompt=prompt,
        choices=[Choice(i, token_ids, for_choice(params, i)) for i in range(count)],
        stops=stop_strings(body),
        with_logprobs=logprobs is not None,
        strip_fence=_wants_json(body),
        stream=stream,
        stream_options=stream_options,
    )


def default_max_tokens(prompt: RenderedPrompt) -> int:
    """Return the token limit of a request that sets none, as DeepSeek's own service has it."""
    if not prompt.thinking:
        return MAX_TOKENS_ANSWER
    return MAX_TOKENS_THINKING_MAX if prompt.effort >= EFFORT_MAX else MAX_TOKENS_THINKING


def _read_max_tokens(body: Mapping[str, Any]) -> int | None:
    """`max_completion_tokens` wins over `max_tokens`; both count reasoning too."""
    newer = read_int(body, "max_completion_tokens", low=1)
    older = read_int(body, "max_tokens", low=1)
    return older if newer is None else newer


def _read_logprobs(body: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives to report, None for no report."""
    count = read_int(body, "top_logprobs", low=0, high=MAX_LOGPROBS)
    if not read_bool(body, "logprobs"):
        if count is not None:
            raise wrong("top_logprobs", "needs logprobs to be true")
        return None
    return count or 0


def _wants_json(body: Mapping[str, Any]) -> bool:
    kind = read_mapping(body, "response_format").get("type")
    return kind in ("json_object", "json_schema")
