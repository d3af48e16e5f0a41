"""Generating the choices of a /v1/completions request, whatever is done with their text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from engine.request import FinishEvent, PromptEvent, TokensEvent
from server.bridge import Generation
from server.choices import Choice, ChoiceRunner
from server.completion_request import CompletionRequest
from server.completion_text import CompletionPiece, CompletionText
from server.state import ServerState
from server.usage import Usage

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer

Emit = Callable[[CompletionPiece], Awaitable[None]]


class CompletionRun:
    """One request on its way through the engine.

    Attributes:
        wanted: the request.
        runner: submits its choices.
        usage: token counts so far.
    """

    def __init__(self, state: ServerState, tokenizer: Tokenizer, wanted: CompletionRequest) -> None:
        self.wanted = wanted
        self.runner = ChoiceRunner(state)
        self.usage = Usage()
        self._tokenizer = tokenizer

    async def generate(self, choice: Choice, emit: Emit) -> str:
        """Generate one choice, hand its pieces to `emit` and return the finish reason."""
        text = CompletionText(
            self._tokenizer, self.wanted.stops, with_logprobs=self.wanted.with_logprobs
        )
        async with self.runner.generation(choice) as generation:
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
                    if self.wanted.echo:
                        hide_first = self.wanted.prompt_of(choice).added_bos
                        prompt_ids = choice.prompt_ids
                        await emit(text.echo(prompt_ids, event.logprobs, hide_first=hide_first))
                elif isinstance(event, TokensEvent):
                    self.usage.completion_tokens += len(event.token_ids)
                    piece = text.feed(event)
                    if piece:
                        await emit(piece)
                    if text.stopped:
                        return "stop"
                elif isinstance(event, FinishEvent):
                    return event.reason

    def _count_prompt(self, choice: Choice, event: PromptEvent) -> None:
        """Count a prompt once, however many choices continue it."""
        if choice.index % self.wanted.n == 0:
            self.usage.prompt_tokens += event.num_tokens
            self.usage.cached_tokens += event.num_cached_tokens
