"""POST /v1/completions: raw text in, raw text out, with echo and logprobs for scoring."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from engine.request import FinishEvent, PromptEvent, TokensEvent
from server.body import read_json
from server.bridge import Generation
from server.choices import Choice, ChoiceRunner, run_all
from server.completion_request import CompletionRequest, read_completion
from server.completion_text import CompletionPiece, CompletionText
from server.errors import reply_for
from server.logprobs import ScoredToken, completion_logprobs
from server.patience import PatientReply
from server.sse import EventStream
from server.state import STATE, ServerState
from server.usage import Usage
from server.version import fingerprint

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

Emit = Callable[[CompletionPiece], Awaitable[None]]


async def handle_completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/completions."""
    state = request.app[STATE]
    engine = state.require_engine()
    body = await read_json(request)
    state.check_model(body)
    wanted = await asyncio.to_thread(read_completion, body, engine)
    runner = ChoiceRunner(state)
    answer = CompletionAnswer(state, engine.tokenizer, wanted, runner)
    async with runner.admit(wanted.choices[0]):
        if wanted.stream:
            return await answer.stream(request)
        return await answer.reply(request)


class CompletionAnswer:
    """One answer: generates the choices and sends them, as a stream or as a whole."""

    def __init__(
        self,
        state: ServerState,
        tokenizer: Tokenizer,
        wanted: CompletionRequest,
        runner: ChoiceRunner,
    ) -> None:
        self._state = state
        self._tokenizer = tokenizer
        self._wanted = wanted
        self._runner = runner
        self._usage = Usage()
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

            reason = await self._generate(choice, collect)
            finished[choice.index] = self._choice(choice.index, whole.text, whole.tokens, reason)

        async with PatientReply(request, self._state) as sender:
            await run_all(run(choice) for choice in self._wanted.choices)
            ordered = [finished[index] for index in sorted(finished)]
            return await sender.send({**self._envelope(ordered), "usage": self._usage.as_json()})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send pieces of all choices as they come."""
        async with EventStream(request, self._state.config.keepalive_s) as stream:

            async def run(choice: Choice) -> None:
                async def emit(piece: CompletionPiece) -> None:
                    chunk = self._choice(choice.index, piece.text, piece.tokens, None)
                    await stream.send(self._chunk([chunk]))

                reason = await self._generate(choice, emit)
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

    async def _generate(self, choice: Choice, emit: Emit) -> str:
        """Generate one choice, hand its pieces to `emit` and return the finish reason."""
        text = CompletionText(
            self._tokenizer, self._wanted.stops, with_logprobs=self._wanted.with_logprobs
        )
        async with self._runner.generation(choice) as generation:
            reason = await self._consume(generation, choice, text, emit)
        last = text.finish()
        if last:
            await emit(last)
        return reason

    async def _consume(
        self, generation: Generation, choice: Choice, text: CompletionText, emit: Emit
    ) -> str:
        """Feed a generation's events into `text` until it ends."""
        while True:
            for event in await generation.next_events():
                if isinstance(event, PromptEvent):
                    self._count_prompt(choice, event)
                    if self._wanted.echo:
                        hide_first = self._wanted.prompt_of(choice).added_bos
                        prompt_ids = choice.prompt_ids
                        await emit(text.echo(prompt_ids, event.logprobs, hide_first=hide_first))
                elif isinstance(event, TokensEvent):
                    self._usage.completion_tokens += len(event.token_ids)
                    piece = text.feed(event)
                    if piece:
                        await emit(piece)
                    if text.stopped:
                        return "stop"
                elif isinstance(event, FinishEvent):
                    return event.reason

    def _count_prompt(self, choice: Choice, event: PromptEvent) -> None:
        """Count a prompt once, however many choices continue it."""
        if choice.index % self._wanted.n == 0:
            self._usage.prompt_tokens += event.num_tokens
            self._usage.cached_tokens += event.num_cached_tokens

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return one event of a stream; the one without choices carries the usage."""
        chunk = self._envelope(choices)
        if self._wanted.stream_options.continuous_usage or not choices:
            chunk["usage"] = self._usage.as_json()
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
