"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from server.body import read_json
from server.chat import ContentDelta
from server.chat_reply import (
    ChatEnvelope,
    chunk_choice,
    delta_json,
    merge_deltas,
    message_choice,
    role_delta,
)
from server.chat_request import ChatRequest, read_chat
from server.chat_turn import ChatPiece, ChatTurn
from server.choices import Choice, ChoiceRunner, run_all
from server.errors import reply_for
from server.patience import PatientReply
from server.sse import EventStream
from server.state import STATE, ServerState

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


async def handle_chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/chat/completions.

    The request is checked, rendered, encoded and submitted before the first byte of the answer, so
    that whatever is wrong with it still gets a real status.
    """
    state = request.app[STATE]
    engine = state.require_engine()
    body = await read_json(request)
    state.check_model(body)
    wanted = await asyncio.to_thread(read_chat, body, engine)
    runner = ChoiceRunner(state)
    answer = ChatAnswer(state, engine.tokenizer, wanted, runner)
    async with runner.admit(wanted.choices[0]):
        if wanted.stream:
            return await answer.stream(request)
        return await answer.reply(request)


class ChatAnswer:
    """One answer: generates the choices and sends them, as a stream or as a whole."""

    def __init__(
        self, state: ServerState, tokenizer: Tokenizer, wanted: ChatRequest, runner: ChoiceRunner
    ) -> None:
        self._state = state
        self._tokenizer = tokenizer
        self._wanted = wanted
        self._runner = runner
        self._envelope = ChatEnvelope(state.model_name)

    async def reply(self, request: web.Request) -> web.StreamResponse:
        """Collect all choices and send one JSON object."""
        finished: dict[int, dict[str, Any]] = {}

        async def run(choice: Choice) -> None:
            logprobs: list[dict[str, Any]] = []

            async def collect(piece: ChatPiece) -> None:
                logprobs.extend(piece.logprobs)

            turn = self._turn(choice, collect)
            reason = await turn.run(self._runner)
            finished[choice.index] = message_choice(
                choice.index,
                turn.reply,
                reason,
                thinking=self._wanted.prompt.thinking,
                strip_fence=self._wanted.strip_fence,
                logprobs=logprobs if self._wanted.with_logprobs else None,
            )

        async with PatientReply(request, self._state) as sender:
            await run_all(run(choice) for choice in self._wanted.choices)
            choices = [finished[index] for index in sorted(finished)]
            return await sender.send(self._envelope.completion(choices))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send pieces of all choices as they come."""
        async with EventStream(request, self._state.config.keepalive_s) as stream:
            try:
                await run_all(
                    self._stream_choice(choice, stream) for choice in self._wanted.choices
                )
                if self._wanted.stream_options.include_usage:
                    await stream.send(self._envelope.chunk([], with_usage=True))
            except ConnectionError:
                raise
            except Exception as problem:
                await stream.fail(reply_for(problem))
            return await stream.finish()

    async def _stream_choice(self, choice: Choice, stream: EventStream) -> None:
        async def send(
            delta: dict[str, Any],
            finish_reason: str | None = None,
            logprobs: list[dict[str, Any]] | None = None,
        ) -> None:
            with_usage = self._wanted.stream_options.continuous_usage
            element = chunk_choice(choice.index, delta, finish_reason, logprobs)
            await stream.send(self._envelope.chunk([element], with_usage=with_usage))

        async def emit(piece: ChatPiece) -> None:
            unsent.extend(piece.logprobs)
            for delta in merge_deltas(piece.deltas):
                is_answer = isinstance(delta, ContentDelta)
                await send(delta_json(delta), logprobs=list(unsent) if is_answer else None)
                if is_answer:
                    unsent.clear()

        unsent: list[dict[str, Any]] = []
        await send(role_delta(self._wanted.prompt.thinking))
        reason = await self._turn(choice, emit).run(self._runner)
        await send({}, reason, unsent)

    def _turn(self, choice: Choice, emit: Any) -> ChatTurn:
        return ChatTurn(self._tokenizer, self._wanted, choice, self._envelope.usage, emit)
