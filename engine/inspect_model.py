"""What is in a model file, for the command line."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from memory.gguf.inspect import describe, render


def inspect(path: str | Path, engram_path: str, as_json: bool, console: Console) -> None:
    """Print a file's layout, types, sizes and what is missing.

    Args:
        path: a GGUF file, or any shard of a set.
        engram_path: Engram shard, if it lies elsewhere.
        as_json: print one JSON object instead of tables.
        console: where to print.

    Raises:
        ModelFileError: the file is missing, damaged or of another architecture.
    """
    if as_json:
        console.out(json.dumps(describe(path, engram_path), indent=1), highlight=False)
    else:
        render(path, engram_path, console)
