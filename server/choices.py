"""Running the choices of one request side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from engine.request import SamplingParams
from server.bridge import Generation, start_generation, start_when_possible
from server.state import ServerState


@dataclass(frozen=True)
class Choice:
    """One sequence to generate."""

    index: int
    prompt_ids: list[int]
    params: SamplingParams


class ChoiceRunner:
    """Submits the choices of one request, never more at a time than the engine has slots.

    The first choice is submitted by `admit`, so that a full queue is an error of the request; the
    others wait for their turn, so that a long list of prompts cannot fail half way or crowd out
    other clients.
    """

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._slots = asyncio.Semaphore(state.config.max_num_seqs)
        self._first: Generation | None = None

    @asynccontextmanager
    async def admit(self, choice: Choice) -> AsyncIterator[None]:
        """Submit the first choice; it is cancelled when the block is left early.

        Raises:
            ServiceError, RequestError, CapacityError: nothing was submitted.
        """
        first = start_generation(self._state, choice.prompt_ids, choice.params)
        async with first:
            self._first = first
            yield

    @asynccontextmanager
    async def generation(self, choice: Choice) -> AsyncIterator[Generation]:
        """Submit a choice, or take the one that was admitted, and cancel it when left early."""
        async with self._slots:
            first, self._first = self._first, None
            if choice.index == 0 and first is not None:
                async with first:
                    yield first
                return
            self._first = first
            later = await start_when_possible(self._state, choice.prompt_ids, choice.params)
            async with later:
                yield later


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
