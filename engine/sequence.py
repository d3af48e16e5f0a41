"""One request inside the engine: its tokens, where it stands, and how it ends."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum

from engine.request import (
    Event,
    EventCallback,
    FinishEvent,
    FinishReason,
    SamplingParams,
    TokenLogprobs,
)

log = logging.getLogger(__name__)


class Status(Enum):
    """Life of a request; it only moves forward."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """A request's state; touched only by the engine's thread after submission."""

    request_id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    on_event: EventCallback
    stop_ids: frozenset[int]
    """Ids that end this request."""
    max_len: int
    """Positions this sequence may use, tokens."""
    status: Status = Status.WAITING
    slot: int = -1
    token_ids: list[int] = field(default_factory=list)
    """Prompt and generated tokens."""
    num_computed: int = 0
    """Tokens whose cache rows exist."""
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    seed: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.seed = secrets.randbits(63) if self.params.seed is None else self.params.seed

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.prompt_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt tokens are to be scored."""
        return self.params.prompt_logprobs is not None

    def append(self, token_id: int) -> FinishReason | None:
        """Add a generated token; return why the request ends with it, or None."""
        self.token_ids.append(token_id)
        if token_id in self.stop_ids:
            return "stop"
        if self.num_generated >= self.params.max_tokens or len(self.token_ids) >= self.max_len:
            return "length"
        return None

    def emit(self, event: Event) -> None:
        """Deliver an event; a listener that raises ends its own request and nothing else."""
        try:
            self.on_event(event)
        except Exception:
            self.status = Status.FINISHED
            log.exception("request=%d ends: its listener failed", self.request_id)

    def finish(self, reason: FinishReason, message: str = "") -> None:
        """Mark as finished and send the last event, once."""
        if self.status is not Status.FINISHED:
            self.status = Status.FINISHED
            self.emit(FinishEvent(reason, message))


def stop_ids_of(params: SamplingParams, tokenizer_stop_ids: SequenceOf[int]) -> frozenset[int]:
    """Return the ids that end a request: the tokenizer's unless ignored, and the request's own."""
    own = frozenset(params.stop_token_ids)
    return own if params.ignore_eos else own | frozenset(tokenizer_stop_ids)
