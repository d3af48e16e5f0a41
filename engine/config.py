"""Every switch of the project, in one typed table; a leaf module, standard library only.

A setting is a field of `EngineConfig` made with `setting(...)`: type, default, unit, choices and
the sentence that documents it stand together. Values come from (later wins) the defaults, a TOML
file, the environment (`DS41_<NAME>`), dedicated options and `--set name=value`. Nothing else in the
project reads the environment.

`python -m engine.config --markdown` writes the reference page from this table.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

ENV_PREFIX = "DS41_"
AUTO_SWITCH = ("auto", "on", "off")


def setting(
    default: Any,
    doc: str,
    *,
    group: str,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
) -> Any:
    """Declare one setting.

    Args:
        default: value when nothing is given; its type decides how text is parsed.
        doc: one sentence for the reference page and `--help`.
        group: heading on the reference page.
        unit: unit of a number, for people.
        choices: allowed texts, empty for any.
        minimum: least allowed number.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "doc": doc,
            "group": group,
            "unit": unit,
            "choices": choices,
            "minimum": minimum,
        },
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All settings with their defaults. Defaults never change a token of output.

    Raises:
        ConfigError: a value is not among its choices or below its minimum; names the setting.
    """

    # ---- numerics
    kv_fake_quant: bool = setting(
        True,
        "Round cached keys and values as the reference does: window KV to FP8 (scale per 32), "
        "latents to FP4 (scale per 16), index keys and queries to FP4 (scale per 32).",
        group="Numerics",
    )
    dtype: str = setting(
        "auto",
        "Compute type of weights and activations; auto is float32 on the CPU, bfloat16 on GPUs of "
        "compute capability 8.0 and newer, float16 on older ones.",
        group="Numerics",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    residual_dtype: str = setting(
        "auto",
        "Type of the residual streams; auto is bfloat16 with dtype bfloat16 (as in the reference), "
        "else float32.",
        group="Numerics",
        choices=("auto", "float32", "bfloat16"),
    )

    # ---- placement
    device: str = setting(
        "auto",
        "Where the model runs; auto takes the first CUDA GPU, else the CPU.",
        group="Placement",
        choices=("auto", "cpu", "cuda"),
    )
    engram_path: str = setting(
        "", "Engram table shard, if it does not lie beside the model.", group="Placement"
    )
    cpu_threads: int = setting(
        0,
        "Threads of CPU arithmetic; 0 takes one for small models (hidden size below 1024), whose "
        "operations are too short to share, else torch's own choice.",
        group="Placement",
        minimum=0,
    )

    # ---- limits
    max_model_len: int = setting(
        0,
        "Longest sequence (prompt and answer); 0 takes the smaller of the model's context and "
        "8192.",
        group="Limits",
        unit="tokens",
        minimum=0,
    )
    max_num_seqs: int = setting(
        4,
        "Sequences that hold a slot at the same time; further requests wait.",
        group="Limits",
        minimum=1,
    )
    max_waiting: int = setting(
        64,
        "Requests that may wait for a slot; a further one is refused with 429.",
        group="Limits",
        minimum=1,
    )

    # ---- step shapes
    prefill_chunk_tokens: int = setting(
        512,
        "Prompt tokens of one prefill step; a running answer waits for at most one chunk.",
        group="Steps",
        unit="tokens",
        minimum=1,
    )
    prefill_tile_rows: int = setting(
        64,
        "Query rows of a prefill chunk whose attention is computed at a time; bounds memory.",
        group="Steps",
        unit="rows",
        minimum=1,
    )
    decode_buckets: tuple[int, ...] = setting(
        (1, 4),
        "Row counts for which a decode step is compiled and captured; a step takes the first that "
        "fits.",
        group="Steps",
        unit="rows",
        minimum=1,
    )

    # ---- graphs
    compiled_decode: str = setting(
        "auto",
        "Compile the decode step with Inductor (one full graph); auto is on for CUDA, off for the "
        "CPU.",
        group="Graphs",
        choices=AUTO_SWITCH,
    )
    cuda_graphs: str = setting(
        "auto",
        "Capture each decode bucket into a CUDA graph; auto is on for CUDA. No effect on the CPU.",
        group="Graphs",
        choices=AUTO_SWITCH,
    )

    # ---- server
    host: str = setting("127.0.0.1", "Address to listen on.", group="Server")
    port: int = setting(
        8000, "Port to listen on; 0 takes a free one and prints it.", group="Server", minimum=0
    )
    served_model_name: str = setting(
        "",
        "Model name in answers, and other names for it after commas; empty takes the file's name.",
        group="Server",
    )
    strict_model: bool = setting(
        False, "Refuse requests that name another model with 404.", group="Server"
    )
    max_body_bytes: int = setting(
        64 * 1024 * 1024, "Longest request body.", group="Server", unit="bytes", minimum=1024
    )
    keepalive_s: float = setting(
        5.0,
        "Silence on a stream after which a comment line is sent.",
        group="Server",
        unit="seconds",
        minimum=0.1,
    )
    drain_timeout_s: float = setting(
        30.0,
        "Time that running requests get to finish after SIGTERM.",
        group="Server",
        unit="seconds",
        minimum=0,
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            check_value(f, getattr(self, f.name))


def check_value(f: dataclasses.Field[Any], value: Any) -> None:
    """Raise ConfigError if `value` is not allowed for setting `f`."""
    choices, minimum = f.metadata["choices"], f.metadata["minimum"]
    if choices and value not in choices:
        raise ConfigError(f"setting {f.name}: {value!r} is not one of {', '.join(choices)}")
    if minimum is not None:
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise ConfigError(f"setting {f.name}: {number!r} is not a number")
            if not number >= minimum:
                raise ConfigError(f"setting {f.name}: {number} is below the minimum {minimum}")
    if isinstance(f.default, tuple) and not value:
        raise ConfigError(f"setting {f.name}: needs at least one number")


def parse_text(f: dataclasses.Field[Any], text: str) -> Any:
    """Turn the text of an option, a variable or a TOML string into the setting's type.

    Raises:
        ConfigError: the text is not of the type; names the setting and what was expected.
    """
    kind: Any = type(f.default)
    try:
        if kind is bool:
            lowered = text.strip().lower()
            if lowered in ("on", "true", "1", "yes"):
                return True
            if lowered in ("off", "false", "0", "no"):
                return False
            raise ValueError
        if kind is tuple:
            return tuple(int(part) for part in text.split(","))
        return kind(text)
    except ValueError:
        wanted = {
            bool: "on or off",
            tuple: "whole numbers with commas",
            int: "a whole number",
            float: "a number",
        }[kind]
        raise ConfigError(f"setting {f.name}: {text!r} is not {wanted}") from None


def find_setting(name: str) -> dataclasses.Field[Any]:
    """Return the field called `name` (hyphens count as underscores).

    Raises:
        ConfigError: no such setting; names the nearest one.
    """
    known = {f.name: f for f in dataclasses.fields(EngineConfig)}
    key = name.strip().replace("-", "_")
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown setting {name!r}{hint}")
    return known[key]


def read_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value` texts, as `--set` takes them.

    Raises:
        ConfigError: no `=`, an unknown name or an unparsable value.
    """
    values: dict[str, Any] = {}
    for item in assignments:
        name, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--set {item!r}: expected name=value")
        f = find_setting(name)
        values[f.name] = parse_text(f, text)
    return values


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Parse the variables `DS41_<NAME>`.

    Raises:
        ConfigError: a variable with the prefix names no setting or cannot be parsed.
    """
    values: dict[str, Any] = {}
    for key in sorted(environ):
        if key.startswith(ENV_PREFIX):
            f = find_setting(key[len(ENV_PREFIX) :].lower())
            values[f.name] = parse_text(f, environ[key])
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """Read settings from a TOML file of `name = value` lines.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or holds an unknown name or a wrong type.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError(f"config file {path}: {problem}") from problem
    values: dict[str, Any] = {}
    for name, value in table.items():
        f = find_setting(name)
        kind = type(f.default)
        if isinstance(value, str):
            values[f.name] = parse_text(f, value)
        elif kind is tuple and isinstance(value, list) and all(type(v) is int for v in value):
            values[f.name] = tuple(value)
        elif type(value) is kind or (kind is float and type(value) is int):
            values[f.name] = kind(value)
        else:
            raise ConfigError(f"config file {path}: {name}: expected {kind.__name__}")
    return values


def load_config(
    *,
    toml_path: Path | None = None,
    assignments: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> EngineConfig:
    """Gather settings from every source; later sources win: TOML, environment, overrides, `--set`.

    Args:
        toml_path: optional TOML file.
        assignments: `name=value` texts of `--set`.
        overrides: typed values of dedicated command-line options; None values are skipped.
        environ: the environment to read; the process's own if None.

    Raises:
        ConfigError: see the readers.
    """
    values: dict[str, Any] = {}
    if toml_path is not None:
        values.update(read_toml(toml_path))
    values.update(read_environment(os.environ if environ is None else environ))
    for name, value in (overrides or {}).items():
        if value is not None:
            values[find_setting(name).name] = value
    values.update(read_assignments(assignments))
    return EngineConfig(**values)


def format_value(value: Any) -> str:
    """Return a setting's value as `--set` would take it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def reference_markdown() -> str:
    """Return the configuration reference page, generated from the table."""
    lines = [
        "# Configuration reference",
        "",
        "Generated by `python -m engine.config --markdown`; do not edit.",
        "",
        "Set a value with `--set name=value`, a TOML file (`--config FILE`) or the environment "
        f"variable `{ENV_PREFIX}NAME`. `--set` wins over dedicated options, those over the "
        "environment, that over the file.",
    ]
    group = None
    for f in dataclasses.fields(EngineConfig):
        if f.metadata["group"] != group:
            group = f.metadata["group"]
            lines += [
                "",
                f"## {group}",
                "",
                "| setting | default | meaning |",
                "| --- | --- | --- |",
            ]
        notes = f.metadata["doc"]
        if f.metadata["choices"]:
            notes += f" One of: {', '.join(f.metadata['choices'])}."
        if f.metadata["unit"]:
            notes += f" Unit: {f.metadata['unit']}."
        default = format_value(f.default)
        lines.append(f"| `{f.name}` | {f'`{default}`' if default else '(empty)'} | {notes} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the resolved settings, or the reference page with `--markdown`."""
    parser = argparse.ArgumentParser(prog="python -m engine.config", description=main.__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the reference page")
    parser.add_argument("--config", type=Path, help="TOML file with settings")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    try:
        if args.markdown:
            sys.stdout.write(reference_markdown())
        else:
            config = load_config(toml_path=args.config, assignments=args.set)
            for f in dataclasses.fields(config):
                print(f"{f.name} = {format_value(getattr(config, f.name))}")
    except ConfigError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
