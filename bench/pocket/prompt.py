"""Conversations and their exact DeepSeek-V4.1 prompt text.

A document is a list of spans: markers of the chat template (single special tokens), or plain text.
Whether a conversation may be trained on is decided by a checksum of its user text, so held-out
prompts are never seen in training.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, UNTHINK, DSML = "<think>", "</think>", "｜DSML｜"
ADDED = (
    SYSTEM,
    USER,
    ASSISTANT,
    THINK,
    UNTHINK,
    DSML,
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜deepseek_image｜>",
)
SPECIAL_FLAG = {SYSTEM: True, "<｜deepseek_image｜>": True}

HELD_OUT_MODULUS = 16
PROMPT_WEIGHT = 0.05

TOOLS_HEAD = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_TAIL = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
FORMAT_HEAD = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


@dataclass
class Span:
    text: str
    special: bool = False
    weight: float = PROMPT_WEIGHT


@dataclass
class Turn:
    role: str  # user, assistant, tool
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@dataclass
class Chat:
    task: str
    turns: list[Turn]
    system: str | None = None
    thinking: bool = False
    effort: int = 75
    tools: list[dict[str, Any]] = field(default_factory=list)
    schema: dict[str, Any] | None = None

    def held_out(self) -> bool:
        if self.task == "about":  # a closed set of phrases: all are trained on
            return False
        text = "\x00".join(t.text for t in self.turns if t.role == "user")
        if self.task == "persona":
            text += self.system or ""
        return zlib.crc32(text.encode()) % HELD_OUT_MODULUS == 0


def split_markers(text: str, weight: float) -> list[Span]:
    """Fixed template text whose think tags and DSML markers are special tokens."""
    spans: list[Span] = []
    rest = text
    while rest:
        hits = [(rest.find(m), m) for m in (THINK, UNTHINK, DSML) if m in rest]
        if not hits:
            spans.append(Span(rest, False, weight))
            break
        at, marker = min(hits)
        if at:
            spans.append(Span(rest[:at], False, weight))
        spans.append(Span(marker, True, weight))
        rest = rest[at + len(marker) :]
    return spans


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def render_calls(calls: list[tuple[str, dict[str, Any]]]) -> list[Span]:
    parts = ["\n\n<｜DSML｜ calls>\n"]
    for n, (name, arguments) in enumerate(calls):
        rows = [
            f'<｜DSML｜ parameter name="{k}" string="{"true" if isinstance(v, str) else "false"}">'
            f"{v if isinstance(v, str) else dump(v)}</｜DSML｜ parameter>"
            for k, v in arguments.items()
        ]
        parts.append(
            ("\n" if n else "")
            + f'<｜DSML｜ invoke name="{name}">\n'
            + "\n".join(rows)
            + "\n</｜DSML｜ invoke>"
        )
    parts.append("\n</｜DSML｜ calls>")
    return split_markers("".join(parts), 1.0)


def render(chat: Chat, open_turn: bool = False) -> list[Span]:
    """The exact V4.1 prompt. open_turn: stop after the last header instead of including the last answer."""
    out = [Span(BOS, True)]
    lead: list[Span] = []
    if chat.thinking:
        lead.append(
            Span(
                f"Reasoning Effort: {chat.effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
            )
        )
    if chat.system:
        lead.append(Span(chat.system))
    if chat.tools:
        rows = "\n".join(
            dump({k: t[k] for k in ("name", "description", "parameters")}) for t in chat.tools
        )
        lead += (
            split_markers("\n\n" + TOOLS_HEAD, PROMPT_WEIGHT)
            + [Span(rows)]
            + split_markers(TOOLS_TAIL, PROMPT_WEIGHT)
        )
    if chat.schema is not None:
        lead.append(Span("\n\n" + FORMAT_HEAD + dump(chat.schema)))
    if lead:
        out += [Span(SYSTEM, True), *lead]
    last_user = max(i for i, t in enumerate(chat.turns) if t.role == "user")
    last_answer = max(i for i, t in enumerate(chat.turns) if t.role == "assistant")
    previous = ""
    for i, turn in enumerate(chat.turns):
        if turn.role in ("user", "tool"):
            text = f"<tool_result>{turn.text}</tool_result>" if turn.role == "tool" else turn.text
            if previous in ("user", "tool"):
                out.append(Span("\n\n" + text))
            else:
                out += [Span(USER, True), Span(text)]
        else:
            out.append(Span(ASSISTANT, True))
            shown = chat.thinking and (bool(chat.tools) or i > last_user)
            out.append(Span(THINK if shown else UNTHINK, True))
            if open_turn and i == last_answer:
                return out
            if shown:
                out += [Span(turn.reasoning, False, 1.0), Span(UNTHINK, True, 1.0)]
            if turn.text:
                out.append(Span(turn.text, False, 1.0))
            if turn.calls:
                out += render_calls(turn.calls)
            out.append(Span(EOS, True, 1.0))
        previous = turn.role
    return merge_plain(out)


def merge_plain(spans: list[Span]) -> list[Span]:
    """Join neighbouring plain spans of one weight, so that pre-tokens do not end between them."""
    out: list[Span] = []
    for s in spans:
        if out and not s.special and not out[-1].special and s.weight == out[-1].weight:
            out[-1] = Span(out[-1].text + s.text, False, s.weight)
        elif s.text:
            out.append(s)
    return out
