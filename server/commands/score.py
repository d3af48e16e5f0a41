"""`ds41 score`: logits of a token sequence as a NumPy file."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError, RequestError
from server.commands.options import read_config, read_json_file, resolve_model
from server.commands.progress import ProgressReport
from server.services import EngineServices

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUMMARY = "write the logits of a token sequence to a file"
EXAMPLES = """examples:
  ds41 score model.gguf --tokens tokens.json --out logits.npy
  ds41 score model.gguf --tokens tokens.json --out logits.npy --chunk 64 --decode-from 100
  ds41 score model.gguf --tokens - --out logits.npy --device cpu --set kv_fake_quant=off

The token file holds a list of ids, or an object with the list under "tokens". The result is
float32 [tokens, vocabulary]: row i holds the logits after token i.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="GGUF file")
    group = parser.add_argument_group("scoring options")
    group.add_argument(
        "--tokens", required=True, metavar="FILE.json", help="token ids, - for stdin"
    )
    group.add_argument("--out", required=True, type=Path, metavar="FILE.npy", help="result")
    group.add_argument("--chunk", type=int, metavar="N", help="tokens of a prefill step (all)")
    group.add_argument(
        "--decode-from",
        type=int,
        metavar="K",
        help="feed the tokens from position K on one at a time",
    )


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Score and write the file; return the exit code."""
    config = read_config(args)
    path = resolve_model(args.model, services)
    token_ids = read_tokens(args.tokens)
    check_target(args.out, path)
    with ProgressReport() as progress:
        logits = services.score_tokens(
            path,
            config,
            token_ids,
            chunk=args.chunk,
            decode_from=args.decode_from,
            on_progress=progress,
        )
    write_npy(args.out, logits)
    print(f"{args.out}: float32 [{logits.shape[0]}, {logits.shape[1]}]")
    return 0


def read_tokens(source: str) -> list[Any]:
    """Return the list in a token file; its elements are checked against the model later.

    Raises:
        ConfigError: the file cannot be read.
        RequestError: it holds no list.
    """
    value = read_json_file(source)
    token_ids = value.get("tokens") if isinstance(value, dict) else value
    if not isinstance(token_ids, list):
        raise RequestError(
            f"{source}: needed a list of token ids, or an object with it under tokens", "tokens"
        )
    return token_ids


def check_target(out: Path, model: Path) -> None:
    """Refuse a result file that could not be written or must not be overwritten.

    Raises:
        ConfigError: no such folder, a device or folder, or the model itself.
    """
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} does not exist")
    if out.exists() and not out.is_file():  # replacing a device would remove it
        raise ConfigError(f"--out {out}: is not a regular file; name the file to write")
    if out.exists() and out.samefile(model):
        raise ConfigError(f"--out {out}: is the model itself; name another file")


def write_npy(path: Path, logits: NDArray[np.float32]) -> None:
    """Write an array [T, V]; the file appears only once it is complete.

    Raises:
        ConfigError: it cannot be written.
    """
    import numpy as np

    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            np.save(file, np.asarray(logits, dtype=np.float32))
        os.replace(unfinished, path)
    except OSError as problem:
        with contextlib.suppress(OSError):  # a read-only folder refuses this too
            unfinished.unlink(missing_ok=True)
        raise ConfigError(
            f"--out {path}: cannot be written: {problem.strerror or problem}"
        ) from None
