"""What a client may ask of the engine and what it hears back; no tensors, no HTTP.

The server builds `SamplingParams`, submits token ids and receives events from the engine's thread
through a callback. Text (stop strings, chat markup) is the server's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import RequestError

FinishReason = Literal["stop", "length", "abort", "error"]
MAX_LOGPROBS = 20


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when a generation ends.

    Raises:
        RequestError: a value is out of range; `param` names the field.
    """

    max_tokens: int
    """Most tokens to generate; 0 only scores the prompt (needs prompt_logprobs)."""
    temperature: float = 1.0
    """0 is greedy; logits are divided by it otherwise."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token generated before."""
    frequency_penalty: float = 0.0
    """Subtracted once per earlier occurrence in the generated text."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or answer."""
    seed: int | None = None
    """Equal seeds give equal draws for equal logits; None draws a fresh seed."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> number added to its logit."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the generation besides the end-of-sentence token."""
    ignore_eos: bool = False
    """Go on after the end-of-sentence token (benchmarks)."""
    min_tokens: int = 0
    """Tokens before which no stop id may be chosen."""
    logprobs: int | None = None
    """Alternatives to report with each token (0 to 20); None reports nothing."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens; None reports nothing."""

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, float, float], ...] = (
            ("temperature", 0.0, 2.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        )
        for name, low, high in ranges:
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise RequestError(f"{name} must be between {low:g} and {high:g}", name)
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise RequestError("top_p must be above 0 and at most 1", "top_p")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise RequestError("repetition_penalty must be above 0", "repetition_penalty")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                raise RequestError(f"{name} must be between 0 and {MAX_LOGPROBS}", name)
        if self.top_k < 0:
            raise RequestError("top_k must be 0 (off) or above", "top_k")
        if self.max_tokens < (0 if self.prompt_logprobs is not None else 1):
            raise RequestError("max_tokens must be at least 1", "max_tokens")
        if self.min_tokens < 0:
            raise RequestError("min_tokens must be 0 or above", "min_tokens")
        for token, bias in self.logit_bias.items():
            if not (math.isfinite(bias) and -100 <= bias <= 100):
                raise RequestError(
                    f"logit_bias of token {token} must be between -100 and 100", "logit_bias"
                )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities (natural logarithm, from the raw logits) at one position."""

    logprob: float
    """Of the token that stands there."""
    top: tuple[tuple[int, float], ...]
    """(token id, logprob) of the most likely tokens, descending."""


@dataclass(frozen=True)
class TokensEvent:
    """Tokens that were generated, in order; several may arrive together."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None


@dataclass(frozen=True)
class PromptEvent:
    """The prompt has been processed.

    `logprobs[i]` belongs to prompt token i and is None for i = 0; the whole is None unless asked.
    """

    num_tokens: int
    num_cached_tokens: int
    logprobs: tuple[TokenLogprobs | None, ...] | None


@dataclass(frozen=True)
class FinishEvent:
    """The last event of a request.

    `stop`: a stop id was generated (it was delivered in the TokensEvent before). `length`:
    max_tokens or the context is used up. `abort`: cancelled. `error`: this request failed;
    `message` says why.
    """

    reason: FinishReason
    message: str = ""


Event = TokensEvent | PromptEvent | FinishEvent
EventCallback = Callable[[Event], None]
