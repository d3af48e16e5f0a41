"""JSON shapes of chat answers: whole messages and the chunks of a stream."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.chat import (
    ChatReply,
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
)
from server.usage import Usage
from server.version import fingerprint

_FENCE = re.compile(r"\s*```[a-zA-Z0-9]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)


@dataclass
class ChatEnvelope:
    """What all chunks of an answer have in common, and its running token counts."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    usage: Usage = field(default_factory=Usage)

    def completion(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a whole answer."""
        return {**self._frame("chat.completion", choices), "usage": self.usage.as_json()}

    def chunk(self, choices: list[dict[str, Any]], *, with_usage: bool) -> dict[str, Any]:
        """Return one event of a stream."""
        frame = self._frame("chat.completion.chunk", choices)
        return {**frame, "usage": self.usage.as_json()} if with_usage else frame

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        }


def logprobs_json(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a choice's `logprobs` object."""
    return {"content": entries, "refusal": None}


def chunk_choice(
    index: int,
    delta: dict[str, Any],
    finish_reason: str | None = None,
    logprobs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the `choices` element of a chunk."""
    return {
        "index": index,
        "delta": delta,
        "logprobs": logprobs_json(logprobs) if logprobs else None,
        "finish_reason": finish_reason,
    }


def role_delta(thinking: bool) -> dict[str, Any]:
    """Return the first delta of a choice; without thinking nothing mentions reasoning."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""}
    return {**delta, "reasoning_content": ""} if thinking else delta


def delta_json(delta: Delta) -> dict[str, Any]:
    """Return the `delta` of a piece; reasoning goes out under both names that clients read."""
    if isinstance(delta, ReasoningDelta):
        return {"reasoning_content": delta.text, "reasoning": delta.text}
    if isinstance(delta, ContentDelta):
        return {"content": delta.text}
    if isinstance(delta, ToolCallArguments):
        return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}
    call = _call_json(delta.id, delta.name, "", delta.namespace)
    return {"tool_calls": [{"index": delta.index, **call}]}


def merge_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """Join neighbouring pieces of the same kind, so that each chunk carries as much as there is."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            merged[-1] = ReasoningDelta(last.text + delta.text)
        elif isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            merged[-1] = ContentDelta(last.text + delta.text)
        elif (
            isinstance(delta, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and delta.index == last.index
        ):
            merged[-1] = ToolCallArguments(last.index, last.text + delta.text)
        else:
            merged.append(delta)
    return merged


def message_choice(
    index: int,
    reply: ChatReply,
    finish_reason: str,
    *,
    thinking: bool,
    strip_fence: bool,
    logprobs: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    """Return the `choices` element of a whole answer.

    `content` is null only beside tool calls; `tool_calls` is absent if there are none.
    """
    content = without_fence(reply.content) if strip_fence else reply.content
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking or reply.reasoning:
        message["reasoning_content"] = message["reasoning"] = reply.reasoning
    if reply.tool_calls:
        message["content"] = content or None
        message["tool_calls"] = [
            _call_json(call.id, call.name, call.arguments, call.namespace)
            for call in reply.tool_calls
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": None if logprobs is None else logprobs_json(logprobs),
        "finish_reason": finish_reason,
    }


def without_fence(content: str) -> str:
    """Return the inside of one code fence that surrounds all of `content`, or `content`."""
    found = _FENCE.fullmatch(content)
    return found[1] if found and "```" not in found[1] else content


def _call_json(call_id: str, name: str, arguments: str, namespace: str | None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call: dict[str, Any] = {"id": call_id, "type": "function", "function": function}
    return call if namespace is None else {**call, "namespace": namespace}
