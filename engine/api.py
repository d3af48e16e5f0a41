"""The engine as the server and the command line see it: submit token ids, hear events.

One thread owns the model. `submit` and `cancel` only leave notes for it, so callers never wait.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path

from engine.batch import StepExecutor
from engine.config import EngineConfig
from engine.errors import CapacityError, EngineError, RequestError
from engine.loading import LoadedModel, load_model
from engine.model.load import Progress
from engine.request import EventCallback, SamplingParams
from engine.sampler import check_token_ids
from engine.scheduler import Scheduler
from engine.sequence import Sequence, Status, stop_ids_of


@dataclass(frozen=True)
class EngineStats:
    """A snapshot for health checks and metrics."""

    running: int
    """Sequences that hold a slot."""
    waiting: int
    """Sequences in the queue."""
    alive: bool
    """Whether the engine's thread runs."""
    error: str
    """Why it does not, or empty."""
    last_step_age_s: float | None
    """Seconds since the step in progress began; None when idle."""
    prompt_tokens_total: int
    generation_tokens_total: int


class RequestHandle:
    """A submitted request."""

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self.request_id = sequence.request_id

    def cancel(self) -> None:
        """Ask for the end of the request; a FinishEvent("abort") follows unless it has ended."""
        self._engine._cancel(self._sequence)


class Engine:
    """A loaded model that serves requests.

    Args:
        loaded: model, tokenizer and limits, from `engine.loading.load_model`.
        config: settings.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.max_model_len = loaded.runner.state.max_model_len
        self._loaded = loaded
        self._executor = StepExecutor(loaded.runner, loaded.tokenizer.suppressed_ids, config)
        self._scheduler = Scheduler(
            num_slots=config.max_num_seqs,
            chunk_tokens=config.prefill_chunk_tokens,
            max_rows=loaded.runner.buckets.largest,
        )
        self._ids = itertools.count(1)
        self._lock = threading.Condition()
        self._inbox: list[Sequence] = []
        self._cancelled: list[Sequence] = []
        self._closing = False
        self._error = ""
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="ds41-engine", daemon=True)
        self._thread.start()

    # ---- called from any thread

    def submit(
        self, prompt_ids: SequenceOf[int], params: SamplingParams, on_event: EventCallback
    ) -> RequestHandle:
        """Queue a request; returns at once.

        Args:
            prompt_ids: at least one token id.
            params: how to generate.
            on_event: called from the engine's thread; must return quickly and not raise.

        Raises:
            RequestError: an id is outside the vocabulary, or the prompt leaves no room for a token
                (code context_length_exceeded).
            CapacityError: the queue is full, or the engine has stopped.
        """
        vocab = self.tokenizer.vocab_size
        if not prompt_ids:
            raise RequestError("the prompt is empty", "prompt")
        for token in prompt_ids:
            if not 0 <= token < vocab:
                raise RequestError(
                    f"token {token} is outside the vocabulary (0..{vocab - 1})", "prompt"
                )
        check_token_ids(params, vocab)
        room = self.max_model_len - len(prompt_ids)
        if room < min(1, params.max_tokens):
            raise RequestError(
                f"This model's maximum context length is {self.max_model_len} tokens. However, you "
                f"requested {len(prompt_ids) + params.max_tokens} tokens ({len(prompt_ids)} in the "
                f"messages, {params.max_tokens} in the completion). Please reduce the length of "
                "the messages or completion.",
                "messages",
                "context_length_exceeded",
            )
        sequence = Sequence(
            request_id=next(self._ids),
            prompt_ids=tuple(prompt_ids),
            params=params,
            on_event=on_event,
            stop_ids=stop_ids_of(params, tuple(self.tokenizer.stop_ids)),
            max_len=self.max_model_len,
        )
        with self._lock:
            if self._closing or self._error:
                raise CapacityError(self._error or "the engine is shutting down")
            waiting = len(self._inbox) + len(self._scheduler.waiting)
            if waiting >= self.config.max_waiting:
                raise CapacityError(
                    f"{waiting} requests are waiting already (max_waiting); try again later"
                )
            self._inbox.append(sequence)
            self._lock.notify()
        return RequestHandle(self, sequence)

    def stats(self) -> EngineStats:
        """Return a snapshot; never waits for a step."""
        began = self._step_began
        with self._lock:
            return EngineStats(
                running=len(self._scheduler.running),
                waiting=len(self._scheduler.waiting) + len(self._inbox),
                alive=self._thread.is_alive() and not self._error,
                error=self._error,
                last_step_age_s=None if began is None else time.monotonic() - began,
                prompt_tokens_total=self._executor.prompt_tokens_total,
                generation_tokens_total=self._executor.generation_tokens_total,
            )

    def close(self, timeout_s: float = 0.0) -> None:
        """Let running requests finish for up to `timeout_s`, abort the others, free the model."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            now = self.stats()
            if not now.alive or not (now.running or now.waiting):
                break
            time.sleep(0.02)
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join()
        self._loaded.close()

    def _cancel(self, sequence: Sequence) -> None:
        with self._lock:
            self._cancelled.append(sequence)
            self._lock.notify()

    # ---- the engine's thread

    def _run(self) -> None:
        try:
            while self._take_notes():
                self._step_began = time.monotonic()
                self._turn()
                self._step_began = None
        except Exception as problem:
            self._error = f"engine stopped: {type(problem).__name__}: {first_line(problem)}"
        with self._lock:
            self._closing = True
            left = [*self._scheduler.running, *self._scheduler.waiting, *self._inbox]
            self._inbox = []
        for sequence in left:
            if self._error:
                sequence.finish("error", self._error)
            else:
                sequence.finish("abort")
        self._scheduler.remove_finished()
        self._step_began = None

    def _take_notes(self) -> bool:
        """Wait for work, take new requests and cancellations; return False to stop."""
        with self._lock:
            while not (self._closing or self._inbox or self._cancelled or not self._scheduler.idle):
                self._lock.wait()
            if self._closing:
                return False
            self._scheduler.waiting.extend(self._inbox)
            self._inbox.clear()
            cancelled, self._cancelled = self._cancelled, []
        for sequence in cancelled:
            sequence.finish("abort")
        return True

    def _turn(self) -> None:
        """Admit, run one prefill chunk, run one decode step of everybody, clean up."""
        self._scheduler.remove_finished()
        for sequence in self._scheduler.admit():
            self._guarded([sequence], functools.partial(self._executor.start, sequence))
        self._scheduler.remove_finished()
        prefill = self._scheduler.next_prefill()
        decoding = self._scheduler.decode_batches()
        if prefill is not None:
            sequence, start, end = prefill
            step = functools.partial(self._executor.prefill, sequence, start, end)
            self._guarded([sequence], step)
        for batch in decoding:
            alive = [s for s in batch if s.status is Status.DECODE]
            if alive:
                self._guarded(alive, functools.partial(self._executor.decode, alive))
        self._scheduler.remove_finished()

    def _guarded(self, sequences: list[Sequence], step: Callable[[], None]) -> None:
        """Run a step; on an error fail only its sequences, unless the device itself is lost.

        Raises:
            RuntimeError: the CUDA context is unusable; nothing after it can succeed.
        """
        try:
            step()
        except (RuntimeError, ValueError, IndexError, OSError, MemoryError, EngineError) as problem:
            for sequence in sequences:
                sequence.finish("error", f"{type(problem).__name__}: {first_line(problem)}")
            if device_lost(problem):
                raise


def first_line(problem: BaseException) -> str:
    """Return the first line of an exception's text."""
    return str(problem).strip().partition("\n")[0]


def device_lost(problem: BaseException) -> bool:
    """Whether an exception means that the CUDA context is unusable (out of memory does not)."""
    text = str(problem)
    return "CUDA error" in text and "out of memory" not in text


def load_engine(
    model_path: str | Path, config: EngineConfig, on_progress: Progress | None = None
) -> Engine:
    """Open a model file, load it and start the engine.

    Raises:
        ModelFileError, ConfigError, PlacementError, CaptureError: see `engine.loading.load_model`.
    """
    return Engine(load_model(model_path, config, on_progress), config)
