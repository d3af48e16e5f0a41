"""POST /v1/completions: raw text in, raw text out, with echo and logprobs for scoring."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from aiohttp import web

from server.body import read_json
from server.choices import Choice, run_all
from server.completion_request import read_completion
from server.completion_run import CompletionRun
from server.completion_text import CompletionPiece
from server.errors import reply_for
from server.logprobs import ScoredToken, completion_logprobs
from server.patience import PatientReply
from server.sse import EventStream
from server.state import STATE, ServerState
from server.version import fingerprint


async def handle_completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/completions."""
    state = request.app[STATE]
    engine = state.require_engine()
    body = await read_json(request)
    state.check_model(body)
    wanted = await asyncio.to_thread(read_completion, body, engine)
    answer = CompletionAnswer(state, CompletionRun(state, engine.tokenizer, wanted))
    async with answer.run.runner.admit(wanted.choices[0]):
        if wanted.stream:
            return await answer.stream(request)
        return await answer.reply(request)


class CompletionAnswer:
    """One answer: sends what a run generates, as a stream or as a whole."""

    def __init__(self, state: ServerState, run: CompletionRun) -> None:
        self.run = run
        self._state = state
        self._wanted = run.wanted
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    async def reply(self, request: web.Request) -> web.StreamResponse:
        """Collect all choices and send one JSON object."""
        finished: dict[int, dict[str, Any]] = {}

        async def run(choice: Choice) -> None:
            whole = CompletionPiece()

            async def collect(piece: CompletionPiece) -> None:
                whole.text += piece.text
                whole.tokens += piece.tokens

            reason = await self.run.generate(choice, collect)
            finished[choice.index] = self._choice(choice.index, whole.text, whole.tokens, reason)

        async with PatientReply(request, self._state) as sender:
            await run_all(run(choice) for choice in self._wanted.choices)
            ordered = [finished[index] for index in sorted(finished)]
            return await sender.send({**self._envelope(ordered), "usage": self.run.usage.as_json()})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send pieces of all choices as they come."""
        async with EventStream(request, self._state.config.keepalive_s) as stream:

            async def run(choice: Choice) -> None:
                async def emit(piece: CompletionPiece) -> None:
                    chunk = self._choice(choice.index, piece.text, piece.tokens, None)
                    await stream.send(self._chunk([chunk]))

                reason = await self.run.generate(choice, emit)
                last = {**self._choice(choice.index, "", [], reason), "logprobs": None}
                await stream.send(self._chunk([last]))

            try:
                await run_all(run(choice) for choice in self._wanted.choices)
                if self._wanted.stream_options.include_usage:
                    await stream.send(self._chunk([]))
            except ConnectionError:
                raise
            except Exception as problem:
                await stream.fail(reply_for(problem))
            return await stream.finish()

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one event of a stream; the one without choices carries the usage."""
        chunk = self._envelope(choices)
        if self._wanted.stream_options.continuous_usage or not choices:
            chunk["usage"] = self.run.usage.as_json()
        return chunk

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the object around choices; streams and whole answers share its name."""
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._state.model_name,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        }

    def _choice(
        self, index: int, text: str, tokens: list[ScoredToken], finish_reason: str | None
    ) -> dict[str, Any]:
        """Return one element of `choices`."""
        logprobs = completion_logprobs(tokens) if self._wanted.with_logprobs else None
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
