"""Log-probabilities in the shapes of the two OpenAI endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.request import TokenLogprobs

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

FLOOR = -9999.0
"""Stands for minus infinity (a masked token), which JSON cannot write."""


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can write."""
    return logprob if logprob > FLOOR else FLOOR


def token_label(tokenizer: Tokenizer, token_id: int) -> str:
    """Return the token's text, or `bytes:\\xe2\\x80` if it is a part of a character."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def chat_entry(tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs) -> dict[str, Any]:
    """Return one element of a chat choice's `logprobs.content`."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.token_text(token),
            "logprob": finite(logprob),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    top = [entry(token, logprob) for token, logprob in logprobs.top]
    return {**entry(token_id, logprobs.logprob), "top_logprobs": top}


@dataclass(frozen=True)
class ScoredToken:
    """One token of a completion: label, its logprob, alternatives, offset in characters."""

    label: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int


def scored_token(
    tokenizer: Tokenizer, token_id: int, logprobs: TokenLogprobs | None, offset: int
) -> ScoredToken:
    """Build a ScoredToken; without logprobs (the first token of a prompt) they are null.

    The token itself is always among its alternatives, as OpenAI's completions have it.
    """
    label = token_label(tokenizer, token_id)
    if logprobs is None:
        return ScoredToken(label, None, None, offset)
    top = {token_label(tokenizer, token): finite(logprob) for token, logprob in logprobs.top}
    logprob = finite(logprobs.logprob)
    top.setdefault(label, logprob)
    return ScoredToken(label, logprob, top, offset)


def completion_logprobs(tokens: list[ScoredToken]) -> dict[str, Any]:
    """Return a completion choice's `logprobs` object."""
    return {
        "tokens": [token.label for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [token.top for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }
