"""Reading a /v1/completions request into choices and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.choices import Choice
from server.fields import (
    read_bool,
    read_int,
    read_mapping,
    read_text,
    read_token_ids,
    unsupported,
    wrong,
)
from server.sampling import (
    fit_max_tokens,
    for_choice,
    read_choice_count,
    read_sampling,
    read_stop,
    refuse_overlong_text,
)

if TYPE_CHECKING:
    from engine.api import Engine
    from engine.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5
MAX_PROMPTS = 4096


@dataclass(frozen=True)
class Prompt:
    """One prompt as ids; `added_bos` if the server put the first one there."""

    token_ids: list[int]
    added_bos: bool


@dataclass(frozen=True)
class StreamOptions:
    """What an event stream shall carry besides the answer."""

    include_usage: bool = False
    continuous_usage: bool = False


@dataclass(frozen=True)
class CompletionRequest:
    """A checked request: prompt `i` has the choices `i * n` to `i * n + n - 1`."""

    prompts: list[Prompt]
    choices: list[Choice]
    n: int
    stops: tuple[str, ...]
    echo: bool
    with_logprobs: bool
    stream: bool
    stream_options: StreamOptions

    def prompt_of(self, choice: Choice) -> Prompt:
        """Return the prompt that a choice continues."""
        return self.prompts[choice.index // self.n]


def read_stream_options(body: Mapping[str, Any]) -> StreamOptions:
    """Return `stream_options`.

    Raises:
        RequestError: given without `stream`, or of a wrong type.
    """
    if body.get("stream_options") is None:
        return StreamOptions()
    options = read_mapping(body, "stream_options")
    if not read_bool(body, "stream"):
        raise wrong("stream_options", "is only allowed together with stream")
    for name in ("include_usage", "continuous_usage_stats"):
        if not isinstance(options.get(name), (bool, type(None))):
            raise wrong("stream_options", f"has a field {name} that is neither true nor false")
    continuous = bool(options.get("continuous_usage_stats"))
    return StreamOptions(bool(options.get("include_usage")), continuous)


def read_completion(body: Mapping[str, Any], engine: Engine) -> CompletionRequest:
    """Check a request and encode its prompts; takes long for long prompts, so run it in a thread.

    Raises:
        RequestError: a field is wrong or unsupported; names it.
    """
    _refuse_unsupported(body)
    tokenizer = engine.tokenizer
    echo = read_bool(body, "echo")
    logprobs = read_int(body, "logprobs", low=0, high=MAX_LOGPROBS)
    asked = read_int(body, "max_tokens", low=0 if echo else 1)
    n = read_choice_count(body)
    _refuse_overlong(body.get("prompt"), engine)
    prompts = read_prompts(body.get("prompt"), tokenizer)
    choices: list[Choice] = []
    # Scoring without generating needs the prompt's logprobs, whether shown or not.
    prompt_logprobs = (logprobs or 0) if echo and (logprobs is not None or asked == 0) else None
    for prompt in prompts:
        num_prompt = len(prompt.token_ids)
        max_tokens = fit_max_tokens(
            asked, DEFAULT_MAX_TOKENS, num_prompt, engine.max_model_len, param="prompt"
        )
        params = read_sampling(
            body,
            tokenizer.vocab_size,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        for index in range(n):
            choice = Choice(len(choices), prompt.token_ids, for_choice(params, index))
            choices.append(choice)
    return CompletionRequest(
        prompts=prompts,
        choices=choices,
        n=n,
        stops=read_stop(body),
        echo=echo,
        with_logprobs=logprobs is not None,
        stream=read_bool(body, "stream"),
        stream_options=read_stream_options(body),
    )


def read_prompts(value: Any, tokenizer: Tokenizer) -> list[Prompt]:
    """Return the prompts of a request as ids.

    Args:
        value: a string, a list of strings, a list of ids, or a list of lists of ids.
        tokenizer: the model's; markup in strings counts.

    Raises:
        RequestError: any other value, or no prompt at all.
    """
    if value is None:
        raise wrong("prompt", "is missing")
    if isinstance(value, str):
        return [encode_prompt(value, tokenizer)]
    if not isinstance(value, list):
        raise wrong("prompt", "must be a string, a list of strings or token ids")
    if not value or isinstance(value[0], int):
        return [_prompt_from_ids(value, tokenizer)]
    if len(value) > MAX_PROMPTS:
        raise wrong("prompt", f"may hold at most {MAX_PROMPTS} prompts, found {len(value)}")
    if all(isinstance(item, str) for item in value):
        return [encode_prompt(item, tokenizer) for item in value]
    if all(isinstance(item, list) for item in value):
        return [_prompt_from_ids(item, tokenizer) for item in value]
    raise wrong("prompt", "must hold only strings, only ids or only lists of ids")


def encode_prompt(text: str, tokenizer: Tokenizer) -> Prompt:
    """Encode text with its markup; a begin-of-sentence token is added if it has none."""
    token_ids = tokenizer.encode_markup(text)
    if token_ids and token_ids[0] == tokenizer.bos_id:
        return Prompt(token_ids, added_bos=False)
    return Prompt([tokenizer.bos_id, *token_ids], added_bos=True)


def _refuse_overlong(value: Any, engine: Engine) -> None:
    """Refuse texts that cannot fit before time is spent on encoding them."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            longest, limit = engine.tokenizer.longest_token, engine.max_model_len
            refuse_overlong_text(len(text), longest, limit, param="prompt")


def _prompt_from_ids(value: list[Any], tokenizer: Tokenizer) -> Prompt:
    """Take ids as they are; an empty prompt is the begin-of-sentence token alone."""
    if not value:
        return Prompt([tokenizer.bos_id], added_bos=True)
    return Prompt(read_token_ids(value, "prompt", tokenizer.vocab_size), added_bos=False)


def _refuse_unsupported(body: Mapping[str, Any]) -> None:
    if read_text(body, "suffix"):
        raise unsupported("suffix", "suffix (filling in the middle) is not supported.")
    best_of = read_int(body, "best_of", low=1)
    if best_of is not None and best_of != read_choice_count(body):
        raise unsupported("best_of", "best_of is only supported where it equals n.")
