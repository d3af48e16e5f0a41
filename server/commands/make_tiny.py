"""`ds41 make-tiny`: a small random model of the real architecture."""

from __future__ import annotations

import argparse
from pathlib import Path

from server.services import EngineServices

SUMMARY = "write a tiny random model with the real layout"
EXAMPLES = """examples:
  ds41 make-tiny tiny.gguf                  model, Engram table, tokenizer and draft
  ds41 make-tiny tiny.gguf --seed 7 --types experts=q2_k,attention=q8_0
  ds41 make-tiny tiny.gguf --split 3        three shards

Its text is noise: the weights are random. Equal seeds give equal files.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("out", type=Path, metavar="OUT.gguf", help="file to write")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights (0)")
    parser.add_argument("--no-draft", action="store_true", help="write no draft file")
    parser.add_argument(
        "--types", default="", metavar="CLASS=TYPE,...", help="storage type per class"
    )
    parser.add_argument("--split", type=int, default=1, metavar="N", help="number of shards (1)")


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Write the files and print their names; return the exit code."""
    written = services.make_tiny(
        args.out,
        seed=args.seed,
        draft=not args.no_draft,
        types=args.types,
        split=args.split,
    )
    for path in written:
        print(path)
    return 0
