"""The text of one raw completion as its tokens arrive, with stop strings and logprobs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.request import TokenLogprobs, TokensEvent
from engine.stop import StopMatcher
from server.logprobs import ScoredToken, scored_token

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


@dataclass
class CompletionPiece:
    """Text to deliver and the tokens that belong to it (empty without logprobs)."""

    text: str = ""
    tokens: list[ScoredToken] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens)


class CompletionText:
    """Assembles one choice of /v1/completions.

    Markup is text here. Tokens wait with text that might become a stop string; if it does, tokens
    behind the cut are dropped, so that the tokens always describe the text.

    Args:
        tokenizer: the model's.
        stops: strings that end the text.
        with_logprobs: whether pieces carry scored tokens.

    Attributes:
        stopped: whether a stop string ended the text.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, with_logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream()
        self._matcher = StopMatcher(stops)
        self._with_logprobs = with_logprobs
        self._held: list[ScoredToken] = []
        self._decoded = 0  # characters decoded so far, prompt included if echoed
        self._released = 0  # characters handed out so far

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self._matcher.hit is not None

    def echo(
        self,
        prompt_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None] | None,
        *,
        hide_first: bool,
    ) -> CompletionPiece:
        """Return the prompt as the beginning of the text.

        The first token shown never has a logprob: clients skip it.

        Args:
            prompt_ids: what the engine was given.
            logprobs: one per prompt token, None if not asked for.
            hide_first: leave out the begin-of-sentence token that the server added.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        silent = {self._tokenizer.bos_id, self._tokenizer.eos_id, self._tokenizer.pad_id}
        piece = CompletionPiece()
        texts: list[str] = []
        start = 1 if hide_first else 0
        for position in range(start, len(prompt_ids)):
            token = prompt_ids[position]
            if self._with_logprobs and logprobs is not None:
                known = logprobs[position] if position > start else None
                piece.tokens.append(scored_token(self._tokenizer, token, known, self._decoded))
            if token not in silent:
                texts.append(decoder.decode(self._tokenizer.token_bytes(token)))
                self._decoded += len(texts[-1])
        texts.append(decoder.decode(b"", final=True))
        self._decoded += len(texts[-1])
        self._released = self._decoded
        piece.text = "".join(texts)
        return piece

    def feed(self, event: TokensEvent) -> CompletionPiece:
        """Add tokens and return what can be delivered."""
        texts: list[str] = []
        for i, token in enumerate(event.token_ids):
            if self._with_logprobs and event.logprobs is not None:
                entry = scored_token(self._tokenizer, token, event.logprobs[i], self._decoded)
                self._held.append(entry)
            text = self._stream.feed(token)
            self._decoded += len(text)
            texts.append(self._matcher.feed(text)[0])
            if self.stopped:
                break
        return self._release("".join(texts), all_tokens=False)

    def finish(self) -> CompletionPiece:
        """Return what was held back, once the generation has ended."""
        text, _ = self._matcher.feed(self._stream.flush())
        return self._release(text + self._matcher.flush(), all_tokens=not self.stopped)

    def _release(self, text: str, *, all_tokens: bool) -> CompletionPiece:
        self._released += len(text)
        tokens = [t for t in self._held if all_tokens or t.offset < self._released]
        self._held = self._held[len(tokens) :]
        return CompletionPiece(text, tokens)
