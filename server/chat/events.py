"""What a rendered prompt hands to the parser, and what the parser hands back.

Plain data, no behaviour beyond joining text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Span = tuple[str, bool]
"""A piece of a prompt: its text, and whether it is one special token."""

StartState = Literal["reasoning", "answer", "calls", "call"]


@dataclass(frozen=True)
class Tool:
    """A function the model may call, as the request declares it."""

    name: str
    """With its namespace, if it has one: `namespace::name`."""
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments object, keys in the order received."""


@dataclass(frozen=True, kw_only=True)
class ParserSetup:
    """Where generated text begins and how it is to be read."""

    start: StartState
    """`reasoning` or `answer`: free text of that channel. `calls`: inside a call block that the
    prompt opened. `call`: inside a call of `forced_name` that the prompt opened."""
    continuation: bool = False
    """The text continues a message of the client: newlines at its start are kept."""
    tools: tuple[Tool, ...] = ()
    """Tools shown to the model; without any, call markup is ordinary text."""
    must_call: bool = False
    """A call is demanded (`tool_choice` required or named)."""
    forced_name: str | None = None
    """The function demanded by a named `tool_choice`."""
    parallel: bool = True
    """Whether more than one call may be made."""


@dataclass(frozen=True, kw_only=True)
class RenderedPrompt:
    """A chat request as the model sees it."""

    spans: tuple[Span, ...]
    """The prompt in order; neighbouring plain spans are joined."""
    thinking: bool
    """Whether the model is asked to think."""
    setup: ParserSetup
    """Input of the parser for the text generated after this prompt."""
    effort: int
    """Reasoning effort 1..100 written into the prompt; 0 without thinking."""

    @property
    def text(self) -> str:
        """The exact prompt text."""
        return "".join(text for text, _ in self.spans)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Tools shown to the model."""
        return self.setup.tools


@dataclass(frozen=True)
class ReasoningDelta:
    """More reasoning text."""

    text: str


@dataclass(frozen=True)
class ContentDelta:
    """More answer text."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins; its arguments follow."""

    index: int
    """0, 1, 2 … within the reply."""
    id: str
    name: str
    namespace: str | None = None
    """Set if the model wrote `namespace::name` and no tool of that full name is declared."""


@dataclass(frozen=True)
class ToolCallArguments:
    """The next piece of a call's arguments, JSON text."""

    index: int
    text: str


Delta = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True)
class ToolCall:
    """One call of a finished reply."""

    id: str
    name: str
    arguments: str
    """JSON text; valid JSON unless the generation was cut inside the call."""
    namespace: str | None = None


@dataclass(frozen=True)
class ChatReply:
    """The joined text of all deltas."""

    reasoning: str
    content: str
    tool_calls: tuple[ToolCall, ...]
