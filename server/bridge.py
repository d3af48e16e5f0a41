"""From the engine's thread to the event loop: one generation as an awaitable stream of events.

The engine calls back from its own thread and must never wait for a client or see its exceptions.
Events cross over with `call_soon_threadsafe`; everything else here runs on the event loop. Leaving
the `async with` block cancels a generation that has not finished: that is how a client's
disconnect, which arrives as CancelledError, frees the slot at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from engine.errors import CapacityError
from engine.request import Event, FinishEvent, PromptEvent, SamplingParams
from server import errors
from server.state import ServerState

if TYPE_CHECKING:
    from engine.api import Engine, RequestHandle

log = logging.getLogger(__name__)

QUEUE_POLL_S = 0.05


class Generation:
    """One request to the engine; use it as an async context manager.

    Attributes:
        prompt_done: whether the prompt has been processed.
    """

    def __init__(self, state: ServerState) -> None:
        self.prompt_done = False
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._arrived = asyncio.Event()
        self._handle: RequestHandle | None = None
        self._finished = False
        self._failure: errors.ServiceError | None = None

    def submit(self, engine: Engine, prompt_ids: Sequence[int], params: SamplingParams) -> Self:
        """Hand the request to the engine and return self.

        Raises:
            RequestError: the engine refuses the request.
            CapacityError: the queue is full.
        """
        self._handle = engine.submit(prompt_ids, params, self._on_engine_event)
        self._state.generations.add(self)
        return self

    @property
    def request_id(self) -> int:
        """The engine's number of the request, submission order; -1 before `submit`."""
        return -1 if self._handle is None else self._handle.request_id

    async def next_events(self) -> list[Event]:
        """Wait for and return all events that have arrived since the last call, at least one.

        Raises:
            ServiceError: the engine failed, or the server ended the generation.
        """
        while not self._events:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        events, self._events = self._events, []
        return events

    def fail(self, failure: errors.ServiceError) -> None:
        """End the generation from the server's side; its consumer gets `failure`."""
        if not self._finished and self._failure is None:
            self._failure = failure
            self.cancel()
            self._arrived.set()

    def cancel(self) -> None:
        """Tell the engine to drop the request; a second call does nothing."""
        if self._handle is not None:
            self._handle.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._state.generations.discard(self)
        if not self._finished:
            self.cancel()

    def _on_engine_event(self, event: Event) -> None:
        """Run on the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, event)
        except RuntimeError:  # the event loop is closed: the process is about to end
            log.debug("event after the end of the event loop")

    def _deliver(self, event: Event) -> None:
        """Take an event on the event loop; what came before a failure is still delivered."""
        if isinstance(event, FinishEvent):
            self._finished = True
            self._state.generations.discard(self)
            self._failure = self._failure or self._failure_of(event)
        if isinstance(event, PromptEvent):
            self.prompt_done = True
        if self._failure is None:
            self._events.append(event)
        self._arrived.set()

    def _failure_of(self, event: FinishEvent) -> errors.ServiceError | None:
        """What the consumer is told instead of an end that is not one of its own."""
        if event.reason == "error":
            log.error("engine request=%d failed: %s", self.request_id, event.message)
            return errors.generation_failed()
        if event.reason == "abort":  # not by this consumer: it would not be listening
            return errors.engine_dead() if self._state.fault else errors.shutting_down()
        return None


def start_generation(
    state: ServerState, prompt_ids: Sequence[int], params: SamplingParams
) -> Generation:
    """Submit a request at once.

    Raises:
        ServiceError: no engine to submit to.
        RequestError, CapacityError: from the engine.
    """
    engine = state.require_engine()
    try:
        return Generation(state).submit(engine, prompt_ids, params)
    except CapacityError:
        if not engine.stats().alive:  # it died a moment ago and takes nothing any more
            raise errors.engine_dead() from None
        raise


async def start_when_possible(
    state: ServerState, prompt_ids: Sequence[int], params: SamplingParams
) -> Generation:
    """Submit a later part of a request that was already admitted: wait while the queue is full.

    Raises:
        ServiceError, RequestError: as `start_generation`.
    """
    while True:
        try:
            return start_generation(state, prompt_ids, params)
        except CapacityError:
            await asyncio.sleep(QUEUE_POLL_S)
