"""`ds41 chat`: a conversation in the terminal, with the engine in this process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console

from engine.errors import RequestError
from server.chat import ContentDelta, ReasoningDelta
from server.chat_request import read_chat
from server.chat_turn import ChatPiece, ChatTurn
from server.choices import ChoiceRunner
from server.commands.generate import add_sampling_options, sampling_fields
from server.commands.options import add_optional_model, model_name, read_config, resolve_model
from server.commands.progress import ProgressReport
from server.services import EngineServices
from server.state import ServerState
from server.usage import Usage

if TYPE_CHECKING:
    from engine.api import Engine

SUMMARY = "chat in the terminal"
EXAMPLES = """examples:
  ds41 chat                                 talk to the embedded tiny model
  ds41 chat model.gguf --no-thinking        answers without reasoning
  ds41 chat model.gguf --message "Why is the sky blue?" > answer.txt

In the conversation: /reset forgets it, /quit or Ctrl-D ends it, Ctrl-C stops an answer.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    add_optional_model(parser)
    group = parser.add_argument_group("chat options")
    group.add_argument(
        "--message", metavar="TEXT", help="ask once, write the answer to stdout and end"
    )
    group.add_argument("--system", metavar="TEXT", help="system message")
    group.add_argument("--no-thinking", action="store_true", help="answer without reasoning")
    group.add_argument("--effort", metavar="LEVEL", help="low, high, max or 1 to 100")
    add_sampling_options(parser, max_tokens=None)


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Load the model and talk; return the exit code."""
    config = read_config(args)
    path = resolve_model(args.model, services)
    with ProgressReport() as progress:
        engine = services.load_engine(path, config, progress)
    try:
        state = ServerState(config=config, file_name=model_name(path), engine=engine)
        conversation = Conversation(state, engine, request_fields(args))
        if args.message is not None:
            conversation.ask(args.message)
        else:
            talk(conversation)
    finally:
        engine.close()
    return 0


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of every request of the conversation."""
    fields = sampling_fields(args)
    if args.effort is not None:
        is_number = args.effort.isascii() and args.effort.isdecimal()
        fields["reasoning_effort"] = int(args.effort) if is_number else args.effort
    if args.no_thinking:
        fields["thinking"] = {"type": "disabled"}
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return {**fields, "messages": system}


def talk(conversation: Conversation) -> None:
    """Read questions until the end of input."""
    with suppress(ImportError):
        import readline  # noqa: F401  line editing and history for input()
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            print()
            return
        if question == "/quit":
            return
        if question == "/reset":
            conversation.reset()
        elif question.startswith("/"):
            print("commands: /reset, /quit")
        elif question:
            try:
                conversation.ask(question)
            except KeyboardInterrupt:
                print("\n(stopped)")
            except RequestError as problem:
                print(f"{problem}\n(/reset begins a new conversation)")


class Conversation:
    """Messages so far and how to continue them.

    Args:
        state: holds the engine and its settings.
        engine: a loaded model.
        fields: request fields; its messages begin every conversation.
    """

    def __init__(self, state: ServerState, engine: Engine, fields: dict[str, Any]) -> None:
        self._state = state
        self._engine = engine
        self._fields = fields
        self._console = Console(file=sys.stdout, highlight=False, markup=False, soft_wrap=True)
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._messages: list[dict[str, Any]] = list(self._fields["messages"])

    def ask(self, question: str) -> None:
        """Answer a question on standard output and remember both.

        Reasoning is shown (dim) on a terminal only, so that a file gets the answer alone.

        Raises:
            RequestError: a request field is wrong, or the conversation does not fit any more.
            KeyboardInterrupt: stopped by the user; the question is forgotten.
        """
        messages = [*self._messages, {"role": "user", "content": question}]
        self._messages = [*messages, asyncio.run(self._answer(messages))]

    async def _answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = read_chat({**self._fields, "messages": messages}, self._engine)
        runner = ChoiceRunner(self._state)
        choice = wanted.choices[0]
        turn = ChatTurn(self._engine.tokenizer, wanted, choice, Usage(), self._show)
        self._thinking_shown = False
        async with runner.admit(choice):
            reason = await turn.run(runner)
        self._console.print()
        if reason == "length":
            print("ds41: the answer was cut: no tokens are left for it", file=sys.stderr)
        reply = turn.reply
        return {
            "role": "assistant",
            "content": reply.content,
            "reasoning_content": reply.reasoning,
        }

    async def _show(self, piece: ChatPiece) -> None:
        for delta in piece.deltas:
            if isinstance(delta, ReasoningDelta) and self._console.is_terminal:
                self._console.print(delta.text, style="dim", end="")
                self._thinking_shown = True
            elif isinstance(delta, ContentDelta):
                if self._thinking_shown:
                    self._console.print("\n")
                    self._thinking_shown = False
                self._console.print(delta.text, end="")
        self._console.file.flush()
