"""`ds41 generate`: continue a text in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

from engine.errors import ConfigError
from server.commands.options import (
    add_optional_model,
    model_name,
    read_bytes,
    read_config,
    resolve_model,
)
from server.commands.progress import ProgressReport
from server.completion_request import read_completion
from server.completion_run import CompletionRun
from server.completion_text import CompletionPiece
from server.services import EngineServices
from server.state import ServerState

SUMMARY = "continue a text"
EXAMPLES = """examples:
  ds41 generate --prompt "Once upon a time" --max-tokens 100
  ds41 generate model.gguf --prompt-file prompt.txt --temperature 0
  ds41 render chat.json | ds41 generate model.gguf --prompt-file -
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    add_optional_model(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="text to continue; markup counts")
    source.add_argument("--prompt-file", metavar="FILE", help="file with the text, - for stdin")
    add_sampling_options(parser, max_tokens=256)
    parser.add_argument(
        "--ignore-eos", action="store_true", help="go on after the end-of-sentence token"
    )
    parser.add_argument("--stats", action="store_true", help="print counts and speed to stderr")


def add_sampling_options(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """Add the options that choose tokens; their names are those of the HTTP API."""
    group = parser.add_argument_group("sampling options")
    shown = "the API's default" if max_tokens is None else str(max_tokens)
    group.add_argument(
        "--max-tokens", type=int, default=max_tokens, help=f"most tokens to generate ({shown})"
    )
    group.add_argument("--temperature", type=float, help="0 is greedy (default 1)")
    group.add_argument("--top-p", type=float, help="nucleus size, above 0 up to 1 (default 1)")
    group.add_argument("--top-k", type=int, help="keep the k most likely tokens")
    group.add_argument("--min-p", type=float, help="drop tokens below this share of the best")
    group.add_argument("--repetition-penalty", type=float, help="above 1 repeats less")
    group.add_argument("--seed", type=int, help="equal seeds give equal draws")
    group.add_argument("--stop", action="append", metavar="TEXT", help="end before this text")


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the request fields that `add_sampling_options` set."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    return {**{name: getattr(args, name) for name in names}, "stop": args.stop}


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Load, generate, write the text to standard output; return the exit code."""
    config = read_config(args)
    path = resolve_model(args.model, services)
    prompt = args.prompt if args.prompt_file is None else read_prompt(args.prompt_file)
    body = {**sampling_fields(args), "prompt": prompt, "ignore_eos": args.ignore_eos}
    with ProgressReport() as progress:
        engine = services.load_engine(path, config, progress)
    try:
        state = ServerState(config=config, file_name=model_name(path), engine=engine)
        completion = CompletionRun(state, engine.tokenizer, read_completion(body, engine))
        start_s = time.monotonic()
        asyncio.run(_write(completion))
        if args.stats:
            _print_stats(completion, time.monotonic() - start_s)
    finally:
        engine.close()
    return 0


def read_prompt(source: str) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: it cannot be read or is not UTF-8.
    """
    try:
        return read_bytes(source).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{source}: not UTF-8 at byte {problem.start}") from None


async def _write(completion: CompletionRun) -> None:
    """Write the text to standard output as it comes."""

    async def emit(piece: CompletionPiece) -> None:
        sys.stdout.write(piece.text)
        sys.stdout.flush()

    choice = completion.wanted.choices[0]
    async with completion.runner.admit(choice):
        await completion.generate(choice, emit)
    if sys.stdout.isatty():
        sys.stdout.write("\n")


def _print_stats(completion: CompletionRun, took_s: float) -> None:
    usage = completion.usage
    rate = usage.completion_tokens / took_s
    print(
        f"ds41: prompt_tokens={usage.prompt_tokens} completion_tokens={usage.completion_tokens} "
        f"seconds={took_s:.2f} tokens_per_second={rate:.1f}",
        file=sys.stderr,
    )
