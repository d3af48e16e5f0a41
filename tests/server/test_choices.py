from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import CapacityError
from engine.request import SamplingParams
from server.choices import Choice, ChoiceRunner, run_all
from server.state import ServerState

PARAMS = SamplingParams(max_tokens=5)


def test_first_failure_cancels_the_others() -> None:
    cancelled = []

    async def wait(name: int) -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        asyncio.run(run_all([wait(1), fail(), wait(2)]))
    assert sorted(cancelled) == [1, 2]


def test_admission_fails_when_full_but_later_choices_wait(engine_class: Any) -> None:
    config = EngineConfig(max_num_seqs=1, max_waiting=1)
    engine = engine_class(config, lambda p, s: engine_class.say("x", token_s=0.05))
    state = ServerState(config=config, file_name="m", engine=engine)

    async def run() -> None:
        choice = Choice(0, [1], PARAMS)
        one, two, three = (ChoiceRunner(state) for _ in range(3))
        async with one.admit(choice), two.admit(choice):
            with pytest.raises(CapacityError):
                async with three.admit(choice):
                    pass
            async with three.generation(Choice(1, [1], PARAMS)) as late:
                await late.next_events()

    asyncio.run(run())
    assert len(engine.requests) == 3
    assert not state.generations


def test_admitted_choice_is_used_once(engine_class: Any) -> None:
    engine = engine_class()
    state = ServerState(config=engine.config, file_name="m", engine=engine)

    async def run() -> None:
        runner = ChoiceRunner(state)
        choice = Choice(0, [1], PARAMS)
        async with runner.admit(choice):
            async with runner.generation(choice) as first:
                assert first.request_id == 0
            assert engine.requests[0].cancelled.is_set()
            async with runner.generation(choice) as again:
                assert again.request_id == 1

    asyncio.run(run())
    assert [request.cancelled.is_set() for request in engine.requests] == [True, True]
