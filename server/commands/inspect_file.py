"""`ds41 inspect`: what is in a model file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from server.commands.options import resolve_model
from server.services import EngineServices

SUMMARY = "show what is in a model file"
EXAMPLES = """examples:
  ds41 inspect model.gguf                   layout, types, bytes, what is missing
  ds41 inspect model-00001-of-00003.gguf    any shard of a set
  ds41 inspect model.gguf --json            the same for programs
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("file", type=Path, metavar="FILE", help="GGUF file of a model or draft")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--engram-path",
        default="",
        metavar="FILE",
        help="Engram table shard, if it does not lie beside the model",
    )


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Print the description; return the exit code."""
    path = resolve_model(args.file, services)
    services.inspect(path, args.engram_path, args.json, Console())
    return 0
