"""From a chat request to the exact prompt of DeepSeek-V4.1.

    BOS [SYSTEM effort, system text, tools, format] turn turn … ASSISTANT (THINK_OPEN | THINK_CLOSE)

No character stands between these that is not written here. The layout follows the official
encoders of the model (`encoding.py` of the released checkpoint and the package deepseek-recipe).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.errors import RequestError
from server.chat.events import ParserSetup, RenderedPrompt
from server.chat.messages import Call, Message, read_messages
from server.chat.response_format import format_section
from server.chat.spans import (
    ASSISTANT,
    BOS,
    DSML,
    EOS,
    LATEST_REMINDER,
    SYSTEM,
    THINK_CLOSE,
    THINK_OPEN,
    USER,
    SpanBuilder,
)
from server.chat.thinking import Thinking, effort_line, resolve_thinking
from server.chat.tools import (
    ToolOptions,
    dump_json,
    forced_call_text,
    resolve_tools,
    write_tools_block,
)

_JOIN = "\n\n"


def render(
    body: Mapping[str, Any],
    *,
    default_thinking: bool = True,
    add_generation_prompt: bool | None = None,
) -> RenderedPrompt:
    """Render the prompt of a chat request (OpenAI shape, as parsed from JSON).

    Args:
        body: the request; only the fields that shape the prompt are read.
        default_thinking: whether to think if the request does not say.
        add_generation_prompt: False ends after the last message instead of opening an assistant
            turn; None takes the field of that name from the request, else True.

    Raises:
        RequestError: a field that shapes the prompt is wrong.
    """
    if not isinstance(body, Mapping):
        raise RequestError("the request must be a JSON object", None, "invalid_value")
    messages = read_messages(body.get("messages"))
    thinking = resolve_thinking(body, default_thinking)
    options = resolve_tools(body)
    section = format_section(body)
    if add_generation_prompt is None:
        add_generation_prompt = _flag(body, "add_generation_prompt", True)
    continued = _continued(body, messages)
    out = SpanBuilder()
    out.special(BOS)
    rest = _write_system(out, messages, thinking, options, section)
    _write_turns(out, rest, thinking, bool(options.tools), keep_last_open=continued)
    setup = initial_setup(thinking, options)
    if continued:
        setup = _write_continuation(out, messages[-1], thinking, setup)
    elif add_generation_prompt:
        out.special(ASSISTANT)
        out.special(THINK_OPEN if thinking.enabled else THINK_CLOSE)
    if continued or add_generation_prompt:
        setup = _write_forced_call(out, setup)
    return RenderedPrompt(
        spans=out.build(),
        thinking=thinking.enabled,
        setup=setup,
        effort=thinking.effort,
    )


def initial_setup(thinking: Thinking, options: ToolOptions) -> ParserSetup:
    """Parser input for a new assistant turn, before anything is forced."""
    return ParserSetup(
        start="reasoning" if thinking.enabled else "answer",
        tools=options.tools,
        must_call=options.mode == "required",
        forced_name=options.forced_name,
        parallel=options.parallel,
    )


def _flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", name, "invalid_value")
    return value


def _continued(body: Mapping[str, Any], messages: Sequence[Message]) -> bool:
    """Whether the last message is to be continued instead of answered."""
    asked = _flag(body, "continue_final_message", False)
    last = messages[-1]
    if not (asked or last.prefix):
        return False
    if last.role != "assistant":
        raise RequestError(
            "continue_final_message needs a final message of role assistant",
            "continue_final_message",
            "invalid_value",
        )
    if last.calls:
        raise RequestError(
            "a final message with tool_calls cannot be continued", "messages", "invalid_value"
        )
    return True


def _write_system(
    out: SpanBuilder,
    messages: Sequence[Message],
    thinking: Thinking,
    options: ToolOptions,
    section: str | None,
) -> Sequence[Message]:
    """Write the leading system part and return the messages after it."""
    leading = messages[0].role == "system"
    if leading or thinking.enabled or options.tools or section is not None:
        out.special(SYSTEM)
    if thinking.enabled:
        out.plain(effort_line(thinking.effort))
    if leading:
        out.plain(messages[0].content)
    if options.tools:
        out.plain(_JOIN)
        write_tools_block(out, options.tools)
    if section is not None:
        out.plain(_JOIN + section)
    return messages[1:] if leading else messages


def _write_turns(
    out: SpanBuilder,
    messages: Sequence[Message],
    thinking: Thinking,
    has_tools: bool,
    keep_last_open: bool,
) -> None:
    """Write all turns but a final one that is continued."""
    if keep_last_open:
        messages = messages[:-1]
    # Without tools the model is trained on prompts that drop reasoning older than the last text of
    # the user; a turn of tool results alone does not count as such.
    last_user = max(
        (i for i, message in enumerate(messages) if message.role in ("user", "system")), default=-1
    )
    call_order: dict[str, int] = {}
    i = 0
    while i < len(messages):
        message = messages[i]
        if message.role in ("user", "tool"):
            end = i + 1
            while end < len(messages) and messages[end].role in ("user", "tool"):
                end += 1
            _write_user_turn(out, messages[i:end], call_order)
            i = end
            continue
        if message.role == "assistant":
            show = thinking.enabled and (has_tools or i > last_user)
            _write_assistant_turn(out, message, show)
            if message.calls:
                call_order = {call.id: n for n, call in enumerate(message.calls) if call.id}
        else:
            out.special(SYSTEM if message.role == "system" else LATEST_REMINDER)
            out.plain(message.content)
        i += 1


def _write_user_turn(
    out: SpanBuilder, group: Sequence[Message], call_order: Mapping[str, int]
) -> None:
    """One user turn of neighbouring user and tool messages; results in the order of the calls."""
    results = iter(
        sorted(
            (message for message in group if message.role == "tool"),
            key=lambda message: call_order.get(message.call_id, 0),
        )
    )
    out.special(USER)
    blocks = (
        f"<tool_result>{next(results).content}</tool_result>"
        if message.role == "tool"
        else message.content
        for message in group
    )
    out.plain(_JOIN.join(blocks))


def _write_assistant_turn(out: SpanBuilder, message: Message, show_reasoning: bool) -> None:
    out.special(ASSISTANT)
    if show_reasoning:
        out.special(THINK_OPEN)
        out.plain(message.reasoning or "")
    out.special(THINK_CLOSE)
    out.plain(message.content)
    if message.calls:
        out.fixed(f"\n\n<{DSML} calls>")
        for call in message.calls:
            _write_call(out, call)
        out.fixed(f"\n</{DSML} calls>")
    out.special(EOS)


def _write_call(out: SpanBuilder, call: Call) -> None:
    out.fixed(f'\n<{DSML} invoke name="')
    out.plain(f'{call.name}">')
    parameters = list(call.parameters())
    for name, value in parameters:
        is_text = isinstance(value, str)
        out.fixed(f'\n<{DSML} parameter name="')
        out.plain(f'{name}" string="{"true" if is_text else "false"}">')
        out.plain(value if is_text else dump_json(value))
        out.fixed(f"</{DSML} parameter>")
    if not parameters:
        out.plain("\n")
    out.fixed(f"\n</{DSML} invoke>")


def _write_continuation(
    out: SpanBuilder, message: Message, thinking: Thinking, setup: ParserSetup
) -> ParserSetup:
    """The open final turn: without end of sentence, inside its reasoning if it has no content."""
    out.special(ASSISTANT)
    reasoning = message.reasoning or ""
    if thinking.enabled:
        out.special(THINK_OPEN)
        out.plain(reasoning)
        if not message.content:
            return replace(setup, start="reasoning", continuation=bool(reasoning))
    out.special(THINK_CLOSE)
    out.plain(message.content)
    return replace(setup, start="answer", continuation=bool(message.content))


def _write_forced_call(out: SpanBuilder, setup: ParserSetup) -> ParserSetup:
    """Open a demanded call at once where the answer begins."""
    if not setup.must_call or setup.start != "answer":
        return setup
    out.fixed(forced_call_text(setup.forced_name))
    return replace(setup, start="calls" if setup.forced_name is None else "call")
