from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.chat import ContentDelta, ReasoningDelta
from server.chat_request import read_chat
from server.chat_turn import ChatPiece, ChatTurn
from server.choices import ChoiceRunner
from server.state import ServerState
from server.usage import Usage

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def play(engine: Any, **fields: Any) -> tuple[ChatTurn, str, Usage, list[ChatPiece]]:
    state = ServerState(config=engine.config, file_name="m", engine=engine)
    body = {"messages": [{"role": "user", "content": "q"}], **fields}
    wanted = read_chat(body, engine)
    pieces: list[ChatPiece] = []
    usage = Usage()

    async def emit(piece: ChatPiece) -> None:
        pieces.append(piece)

    async def run() -> tuple[ChatTurn, str]:
        runner = ChoiceRunner(state)
        turn = ChatTurn(engine.tokenizer, wanted, wanted.choices[0], usage, emit)
        async with runner.admit(wanted.choices[0]):
            return turn, await turn.run(runner)

    turn, reason = asyncio.run(run())
    assert not state.generations
    return turn, reason, usage, pieces


def text_of(pieces: list[ChatPiece], kind: type) -> str:
    return "".join(d.text for piece in pieces for d in piece.deltas if isinstance(d, kind))


@pytest.mark.parametrize("per_event", [1, 3, 500])
def test_pieces_join_to_the_reply(engine_class: Any, per_event: int) -> None:
    output = "Thinking é…</think>\n\nAnswer 世界."
    engine = engine_class(on_request=lambda p, s: engine_class.say(output, per_event=per_event))
    turn, reason, usage, pieces = play(engine)
    assert reason == "stop"
    assert turn.reply.reasoning == text_of(pieces, ReasoningDelta) == "Thinking é…"
    assert turn.reply.content == text_of(pieces, ContentDelta) == "Answer 世界."
    assert usage.completion_tokens == engine.requests[0].num_generated
    assert usage.reasoning_tokens == len(engine.tokenizer.encode_text("Thinking é…"))


def test_reasoning_that_never_ends(engine_class: Any) -> None:
    engine = engine_class(on_request=lambda p, s: engine_class.say("on and on"))
    turn, reason, usage, _ = play(engine, max_tokens=5)
    assert (reason, turn.reply.content) == ("length", "")
    assert turn.reply.reasoning == "on an"
    assert usage.reasoning_tokens == usage.completion_tokens == 5


def test_no_room_left_for_a_forced_call(engine_class: Any) -> None:
    engine = engine_class(on_request=lambda p, s: engine_class.say("hm</think>no"))
    turn, reason, _, _ = play(engine, tools=[TOOL], tool_choice="required", max_tokens=4)
    assert len(engine.requests) == 1
    assert (reason, turn.reply.reasoning) == ("length", "hm")


def test_named_call_after_thinking_writes_the_name(engine_class: Any) -> None:
    tokenizer = engine_class.tokenizer
    rest = (
        '<｜DSML｜ parameter name="k" string="false">[1]</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )

    def on_request(prompt: Any, params: Any) -> Any:
        forced = tokenizer.decode(prompt).endswith('<｜DSML｜ invoke name="f">\n')
        return engine_class.say(rest if forced else "hm</think>no call")

    choice = {"type": "function", "function": {"name": "f"}}
    turn, reason, _, _ = play(engine_class(on_request=on_request), tools=[TOOL], tool_choice=choice)
    assert reason == "tool_calls"
    call = turn.reply.tool_calls[0]
    assert (call.name, call.arguments) == ("f", '{"k": [1]}')
    assert turn.reply.content == ""


def test_call_made_while_thinking_is_not_forced_again(engine_class: Any) -> None:
    call = '<｜DSML｜ invoke name="f">\n\n</｜DSML｜ invoke>'
    output = f"hm\n\n<｜DSML｜ calls>\n{call}\n</｜DSML｜ calls>"
    engine = engine_class(on_request=lambda p, s: engine_class.say(output))
    turn, reason, _, _ = play(engine, tools=[TOOL], tool_choice="required")
    assert reason == "tool_calls"
    assert len(engine.requests) == 1
    assert [call.name for call in turn.reply.tool_calls] == ["f"]
