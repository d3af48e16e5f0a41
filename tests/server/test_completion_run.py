from __future__ import annotations

import asyncio
from typing import Any

from server.completion_request import read_completion
from server.completion_run import CompletionRun
from server.completion_text import CompletionPiece
from server.state import ServerState


def test_without_http(engine_class: Any) -> None:
    engine = engine_class(on_request=lambda p, s: engine_class.say("abc", cached=1))
    state = ServerState(config=engine.config, file_name="m", engine=engine)
    wanted = read_completion({"prompt": ["x", "yz"], "echo": True}, engine)
    texts = ["", ""]

    async def generate() -> list[str]:
        run = CompletionRun(state, engine.tokenizer, wanted)
        reasons = []
        async with run.runner.admit(wanted.choices[0]):
            for choice in wanted.choices:

                async def emit(piece: CompletionPiece, index: int = choice.index) -> None:
                    texts[index] += piece.text

                reasons.append(await run.generate(choice, emit))
        assert (run.usage.prompt_tokens, run.usage.cached_tokens) == (5, 2)
        assert run.usage.completion_tokens == 8
        return reasons

    assert asyncio.run(generate()) == ["stop", "stop"]
    assert texts == ["xabc", "yzabc"]
    assert not state.generations
