"""A loaded pocket model, sampling inputs and a tiny vocabulary for the tests of the engine."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.api import Engine, EngineStats, RequestHandle, load_engine
from engine.config import EngineConfig
from engine.detokenizer import byte_alphabet
from engine.pocket import model_path
from engine.request import (
    Event,
    FinishEvent,
    PromptEvent,
    SamplingParams,
    TokenLogprobs,
    TokensEvent,
)
from engine.sampling_state import SamplingInputs
from engine.vocabulary import BOS, EOS, PAD, REQUIRED_MARKERS


@dataclass
class Heard:
    """All events of one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt: PromptEvent | None = None
    finish: FinishEvent | None = None


class Listener:
    """Collects events; `wait` returns when the last one has come."""

    def __init__(self) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.handle: RequestHandle | None = None
        self._started = threading.Event()

    def hear(self, event: Event) -> None:
        """Take an event from the engine."""
        self.events.put(event)
        if isinstance(event, TokensEvent):
            self._started.set()

    def wait_for_token(self, timeout_s: float = 60.0) -> None:
        """Return once a first token has come; `wait` still returns it."""
        assert self._started.wait(timeout_s), f"no token after {timeout_s} s"

    def wait(self, timeout_s: float = 60.0) -> Heard:
        """Return everything heard."""
        heard = Heard()
        while heard.finish is None:
            event = self.events.get(timeout=timeout_s)
            if isinstance(event, TokensEvent):
                heard.token_ids.extend(event.token_ids)
                heard.logprobs.extend(event.logprobs or ())
            elif isinstance(event, PromptEvent):
                heard.prompt = event
            else:
                heard.finish = event
        return heard


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The pocket model on the CPU: 3 slots, short chunks, small buckets."""
    config = EngineConfig(
        device="cpu",
        max_model_len=512,
        max_num_seqs=3,
        prefill_chunk_tokens=16,
        decode_buckets=(1, 3),
        max_waiting=8,
    )
    loaded = load_engine(model_path(), config)
    yield loaded
    loaded.close()


@pytest.fixture
def idle_stats(engine: Engine) -> Callable[[], EngineStats]:
    """Wait until the engine has cleaned up (a moment after the last event); return its stats."""

    def wait() -> EngineStats:
        deadline = time.monotonic() + 10
        while True:
            stats = engine.stats()
            if stats.running == stats.waiting == 0 and stats.last_step_age_s is None:
                return stats
            assert time.monotonic() < deadline, stats
            time.sleep(0.005)

    return wait


@pytest.fixture
def ask(engine: Engine) -> Callable[..., Listener]:
    """Submit text with chat markup: ask(text, **params) -> Listener."""

    def submit(text: str, **params: object) -> Listener:
        listener = Listener()
        ids = engine.tokenizer.encode_markup(text)
        settings = SamplingParams(**{"max_tokens": 40, "temperature": 0.0, **params})  # type: ignore[arg-type]
        listener.handle = engine.submit(ids, settings, listener.hear)
        return listener

    return submit


@pytest.fixture(scope="session")
def make_inputs() -> Callable[..., SamplingInputs]:
    """Fill one row per request: make_inputs(params, uniforms, slots=None, num_generated=0)."""

    def make(
        params: list[SamplingParams],
        uniforms: list[float],
        slots: list[int] | None = None,
        num_generated: int = 0,
    ) -> SamplingInputs:
        inputs = SamplingInputs.allocate(len(params))
        for row, (p, u) in enumerate(zip(params, uniforms, strict=True)):
            slot = slots[row] if slots else row
            inputs.set_row(row, p, slot=slot, uniform=u, num_generated=num_generated)
        return inputs

    return make


@pytest.fixture(scope="session")
def tiny_metadata() -> Callable[..., dict[str, Any]]:
    """Keys of a vocabulary of bytes, two merges and the markers: tiny_metadata(**changes)."""

    def make(**changes: Any) -> dict[str, Any]:
        markers = [text for text in REQUIRED_MARKERS if text not in (BOS, EOS)]
        tokens = [BOS, EOS, PAD, *byte_alphabet(), "Ġt", "Ġth", *markers]
        metadata = {
            "model": "gpt2",
            "pre": "deepseek-v3",
            "tokens": tokens,
            "token_type": [3] * 3 + [1] * 258 + [4] * len(markers),
            "merges": ["Ġ t", "Ġt h"],
            "bos_token_id": 0,
            "eos_token_id": 1,
            "padding_token_id": 2,
            **changes,
        }
        kept = {key: value for key, value in metadata.items() if value is not None}
        return {f"tokenizer.ggml.{key}": value for key, value in kept.items()}

    return make
