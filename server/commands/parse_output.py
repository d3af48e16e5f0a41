"""`ds41 parse`: how generated text is read as a chat message."""

from __future__ import annotations

import argparse
import json
import sys

from server.chat import parse_file
from server.commands.options import read_json_file
from server.services import EngineServices

SUMMARY = "read generated text as a chat message"
EXAMPLES = """examples:
  ds41 parse output.json
  echo '{"model_output": "Hm.</think>Hi!"}' | ds41 parse -

The file holds an object with model_output (the text after the generation header), and optionally
request (a chat request: thinking, tools, tool_choice and stop matter) and engine_finish (stop or
length). The result is JSON: reasoning_content, content, tool_calls, finish_reason.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("file", metavar="FILE.json", help="generated text, - for stdin")


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Print the message as JSON in UTF-8; return the exit code."""
    reply = parse_file(read_json_file(args.file))
    text = json.dumps(reply, ensure_ascii=False, indent=2)
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()
    return 0
