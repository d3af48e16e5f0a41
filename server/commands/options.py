"""Options that commands share, and what becomes of them."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from engine.config import EngineConfig, load_config
from engine.errors import ConfigError, ModelFileError
from server.body import parse_json_value
from server.services import EngineServices

_SPLIT_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")


def general_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of every command."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("general options")
    group.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    return parent


def model_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of every command that loads a model."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("model options")
    group.add_argument("--config", type=Path, metavar="FILE.toml", help="file with settings")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of docs/configuration.md; may be repeated",
    )
    group.add_argument("--device", help="auto, cpu or cuda")
    group.add_argument("--dtype", help="compute type: auto, float32, bfloat16 or float16")
    group.add_argument(
        "--ctx", type=int, metavar="TOKENS", help="longest prompt and answer together"
    )
    return parent


def add_optional_model(parser: argparse.ArgumentParser) -> None:
    """Add the MODEL argument of commands that have an embedded default."""
    parser.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL",
        help="GGUF file, any shard of a set; the embedded tiny model if left out",
    )


def read_config(args: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """Gather the settings of a command.

    Args:
        args: parsed options, `model_options` among them.
        overrides: settings of the command's own options; None where not given.

    Raises:
        ConfigError: a setting is wrong.
    """
    shared = {"device": args.device, "dtype": args.dtype, "max_model_len": args.ctx}
    return load_config(
        toml_path=args.config, assignments=args.set, overrides={**shared, **overrides}
    )


def resolve_model(model: Path | None, services: EngineServices) -> Path:
    """Return the model file to load, the embedded one if none is named.

    Raises:
        ModelFileError: there is no such file.
    """
    path = services.embedded_model() if model is None else model
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise ModelFileError(path, "", f"found {found}, needed a GGUF file")
    return path


def model_name(path: Path) -> str:
    """Return the name of a model file without ending and shard number."""
    return _SPLIT_SUFFIX.sub("", path.name.removesuffix(".gguf"))


def read_bytes(source: str) -> bytes:
    """Return the content of a file, of standard input for `-`.

    Raises:
        ConfigError: it cannot be read.
    """
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as problem:
        raise ConfigError(f"{source}: {problem.strerror or problem}") from None


def read_json_file(source: str) -> Any:
    """Return the JSON value in a file, in standard input for `-`; NaN and Infinity may occur.

    Raises:
        ConfigError: it cannot be read.
        RequestError: it is not JSON.
    """
    name = "standard input" if source == "-" else source
    return parse_json_value(read_bytes(source), name, strict=False)
