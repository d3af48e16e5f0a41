"""The command `ds41`: one file per sub-command under `server/commands/`.

Whatever goes wrong ends as one line on standard error, `ds41: error: ...`, and an exit code that
scripts can rely on: that of the error's class (see `engine/errors.py`), 2 for wrong usage, 130
after Ctrl-C, 141 when the reader of a pipe has gone.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from engine.errors import EngineError
from server.commands import (
    chat,
    generate,
    inspect_file,
    make_tiny,
    parse_output,
    render_prompt,
    score,
    serve,
)
from server.commands.options import general_options, model_options
from server.services import EngineServices
from server.version import version

COMMANDS: dict[str, ModuleType] = {
    "serve": serve,
    "chat": chat,
    "generate": generate,
    "score": score,
    "inspect": inspect_file,
    "render": render_prompt,
    "parse": parse_output,
    "make-tiny": make_tiny,
}
LOADS_MODEL = (serve, chat, generate, score)

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

EXIT_CODES = """exit codes:
  0 done   1 failure   2 wrong usage, setting or request   3 model file   4 memory
  5 limit reached   6 CUDA driver   7 graph compile or capture   130 interrupted
"""


class ArgumentParser(argparse.ArgumentParser):
    """Reports errors in one line and suggests the nearest name."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        print(f"ds41: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def check_options(self, arguments: Sequence[str]) -> None:
        """Report the first `--name` that is not an option, before anything that is missing."""
        for argument in arguments:
            name = argument.partition("=")[0]
            if argument == "--":
                return
            if name.startswith("--") and name not in self._option_string_actions:
                hint = nearest(name, list(self._option_string_actions))
                self.error(f"unknown option {name!r}{hint}")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean ...?`, or nothing if no known name is similar."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def build_parser() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    """Return the parser of the whole command line and those of the commands."""
    parser = ArgumentParser(
        prog="ds41",
        description="Inference engine for DeepSeek-V4.1-Flash GGUF files.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ds41 {version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    commands: dict[str, ArgumentParser] = {}
    general, model = general_options(), model_options()
    for name, command in COMMANDS.items():
        parents = [general, model] if command in LOADS_MODEL else [general]
        sub = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.SUMMARY[0].upper() + command.SUMMARY[1:] + ".",
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=parents,  # type: ignore[arg-type]
            allow_abbrev=False,
        )
        command.add_options(sub)
        sub.set_defaults(run=command.run)
        commands[name] = sub
    return parser, commands


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exits with 2 on wrong usage, with 0 after --help or --version."""
    parser, commands = build_parser()
    if argv and not argv[0].startswith("-"):
        if argv[0] not in commands:
            parser.error(f"unknown command {argv[0]!r}{nearest(argv[0], list(commands))}")
        commands[argv[0]].check_options(argv[1:])
    args = parser.parse_args(argv)
    if args.command is None:
        parser.error("a command is needed")
    return args


def report(problem: BaseException, debug: bool) -> None:
    """Print an exception as one line, with its traceback before it if `debug`."""
    if debug:
        traceback.print_exception(problem)
    message = " ".join(str(problem).split()) or type(problem).__name__
    if not isinstance(problem, (EngineError, OSError)):
        message = f"{type(problem).__name__}: {message}"
        message += "" if debug else " (--debug shows where)"
    print(f"ds41: error: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None, services: EngineServices | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        argv: arguments without the program's name; the process's own if None.
        services: the engine's entry points; the real ones if None.
    """
    try:
        args = parse_arguments(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USAGE
    try:
        code: int = args.run(args, services or EngineServices())
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("ds41: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What Python flushes at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as problem:
        report(problem, args.debug)
        return problem.exit_code if isinstance(problem, EngineError) else EXIT_FAILURE
    return code


if __name__ == "__main__":
    sys.exit(main())
