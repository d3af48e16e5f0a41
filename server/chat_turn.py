"""One chat choice: from engine events through the parser to pieces of a message.

A call that the client demands (`tool_choice` required or named) while the model thinks cannot be
put into the prompt: it must come after the reasoning. When the parser sees that the reasoning has
ended without a call, the generation is cancelled and a new one is submitted whose prompt is the old
prompt, what was generated so far and the opening of a call. The parser goes on as if the model had
written it, so the client sees one answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.request import FinishEvent, PromptEvent, TokenLogprobs, TokensEvent
from engine.tokenizer import THINK_CLOSE
from server.answer_logprobs import AnswerLogprobs
from server.bridge import Generation
from server.chat import ChatParser, ChatReply, ContentDelta, Delta, Span, marker_ids
from server.chat_request import ChatRequest
from server.choices import Choice, ChoiceRunner
from server.logprobs import chat_entry
from server.usage import Usage

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


@dataclass
class ChatPiece:
    """Deltas that arrived together and the logprobs of answer tokens completed by them."""

    deltas: list[Delta]
    logprobs: list[dict[str, Any]]


EmitPiece = Callable[[ChatPiece], Awaitable[None]]


class ChatTurn:
    """Generates one choice.

    Args:
        tokenizer: the model's.
        wanted: the request.
        choice: which of its choices.
        usage: counts of the whole request, added to; text that was forced counts as generated.
        emit: gets every piece in order.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        wanted: ChatRequest,
        choice: Choice,
        usage: Usage,
        emit: EmitPiece,
    ) -> None:
        self._tokenizer = tokenizer
        self._choice = choice
        self._usage = usage
        self._emit = emit
        self._parser = ChatParser(
            wanted.prompt.setup, stop=wanted.stops, markers=marker_ids(tokenizer)
        )
        self._text = tokenizer.stream()
        self._answer = AnswerLogprobs() if wanted.with_logprobs else None
        self._think_close = tokenizer.special_id(THINK_CLOSE)
        self._reasoning = wanted.prompt.setup.start == "reasoning"
        self._generated: list[int] = []
        self._forced: tuple[Span, ...] | None = None
        self._prompt_counted = choice.index != 0

    async def run(self, runner: ChoiceRunner) -> str:
        """Generate until the end and return the finish reason.

        Raises:
            ServiceError, RequestError: the engine failed or refused.
        """
        choice = self._choice
        while True:
            async with runner.generation(choice) as generation:
                reason = await self._consume(generation)
            if self._forced is None:
                break
            self._append(self._tokenizer.encode_spans(self._forced))
            self._forced = None
            left = self._choice.params.max_tokens - len(self._generated)
            if left < 1:
                reason = "length"
                break
            choice = self._continued(left)
        return await self._finish(reason)

    @property
    def reply(self) -> ChatReply:
        """The whole message, once `run` has returned."""
        return self._parser.reply()

    def _continued(self, left: int) -> Choice:
        """Return the choice that goes on after what was generated, for `left` more tokens."""
        params = dataclasses.replace(
            self._choice.params,
            max_tokens=left,
            min_tokens=max(0, self._choice.params.min_tokens - len(self._generated)),
        )
        return Choice(self._choice.index, self._choice.prompt_ids + self._generated, params)

    async def _consume(self, generation: Generation) -> str:
        """Feed events to the parser until the engine, the parser or a demanded call ends them."""
        while True:
            piece = ChatPiece([], [])
            reason = ""
            for event in await generation.next_events():
                if isinstance(event, PromptEvent):
                    self._count_prompt(event)
                elif isinstance(event, TokensEvent):
                    reason = self._take_tokens(event, piece)
                elif isinstance(event, FinishEvent):
                    reason = event.reason
                    if reason == "stop":
                        self._add(self._parser.feed(self._text.flush()), piece)
                        self._forced = self._parser.take_forced(at_stop=True)
                if reason:
                    break
            if piece.deltas or piece.logprobs:
                await self._emit(piece)
            if reason:
                return reason

    def _take_tokens(self, event: TokensEvent, piece: ChatPiece) -> str:
        """Parse tokens; return why the generation should end here, or ""."""
        for i, token in enumerate(event.token_ids):
            logprobs = event.logprobs[i] if event.logprobs is not None else None
            self._take_token(token, logprobs, piece)
            if self._parser.done:
                return "stop"
            self._forced = self._parser.take_forced()
            if self._forced is not None:
                return "forced"
        return ""

    def _take_token(self, token: int, logprobs: TokenLogprobs | None, piece: ChatPiece) -> None:
        text = self._text.feed(token)
        self._generated.append(token)
        self._usage.completion_tokens += 1
        if token == self._think_close:
            self._reasoning = False
        elif self._reasoning:
            self._usage.reasoning_tokens += 1
        elif self._answer is not None and logprobs is not None:
            self._answer.add_token(text, chat_entry(self._tokenizer, token, logprobs))
        self._add(self._parser.feed_token(token, text), piece)

    def _add(self, deltas: list[Delta], piece: ChatPiece) -> None:
        piece.deltas += deltas
        if self._answer is not None:
            for delta in deltas:
                if isinstance(delta, ContentDelta):
                    piece.logprobs += self._answer.add_content(delta.text)

    def _append(self, forced_ids: list[int]) -> None:
        """Take tokens that the server chose, behind which the parser stands already."""
        while self._generated and self._generated[-1] in self._tokenizer.stop_ids:
            self._generated.pop()
        self._generated += forced_ids
        self._usage.completion_tokens += len(forced_ids)
        self._reasoning = False
        self._text = self._tokenizer.stream()

    async def _finish(self, reason: str) -> str:
        """Hand out what the parser still held and return the finish reason of the choice."""
        piece = ChatPiece([], [])
        self._add(self._parser.feed(self._text.flush()), piece)
        deltas, finish_reason = self._parser.finish("length" if reason == "length" else "stop")
        self._add(deltas, piece)
        if self._answer is not None:
            piece.logprobs += self._answer.finish()
        if piece.deltas or piece.logprobs:
            await self._emit(piece)
        return finish_reason

    def _count_prompt(self, event: PromptEvent) -> None:
        """Count the prompt once, for the first choice and not for its continuation."""
        if not self._prompt_counted:
            self._prompt_counted = True
            self._usage.prompt_tokens += event.num_tokens
            self._usage.cached_tokens += event.num_cached_tokens
