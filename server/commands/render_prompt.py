"""`ds41 render`: the exact prompt text of a chat request."""

from __future__ import annotations

import argparse
import sys

from server.chat import render_file
from server.commands.options import read_json_file
from server.services import EngineServices

SUMMARY = "print the exact prompt of a chat request"
EXAMPLES = """examples:
  ds41 render request.json                  a /v1/chat/completions body
  echo '{"messages": [{"role": "user", "content": "Hi"}]}' | ds41 render -

Nothing is added to the prompt, not even a newline at its end.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("file", metavar="FILE.json", help="request body, - for stdin")


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Print the prompt in UTF-8; return the exit code."""
    sys.stdout.buffer.write(render_file(read_json_file(args.file)).encode("utf-8"))
    sys.stdout.buffer.flush()
    return 0
