"""What is in a model or draft file: for people (`render`) and for programs (`describe`).

Works on files that lack keys, tensors or the Engram shard and lists what is missing; a file whose
header is damaged or whose values contradict each other is refused as by `open_model`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.model_config import BlockConfig, DraftConfig, ModelConfig
from memory.gguf.classes import ClassTotal, class_totals
from memory.gguf.format import quote
from memory.gguf.keys import MissingKeysError
from memory.gguf.layouts import DRAFT_ARCH, LAYOUTS, check_architecture, map_model
from memory.gguf.metadata import read_draft_config, read_model_config
from memory.gguf.model_file import WEIGHT_TYPES, TensorFile
from memory.gguf.requirements import (
    Requirement,
    check_table,
    compact_names,
    draft_requirements,
    fit_tensors,
    missing_names,
    model_requirements,
)
from memory.gguf.split import FileSet, read_file_set
from memory.gguf.table import TABLE
from memory.gguf.tensors import TensorInfo

Report = dict[str, Any]


def describe(source: str | os.PathLike[str] | TensorFile, engram_path: str = "") -> Report:
    """Return what is in a file, in values that JSON can hold.

    Args:
        source: path of a model (any shard) or draft, or an opened file.
        engram_path: as for `open_model`.

    Returns:
        path, architecture, name, layout (id and text), gguf_version, shards (path, bytes,
        tensors), file_bytes, tensor_count, classes (class, type, count, weights, bytes), types
        (type, count, weights, bytes), parameters, bits_per_weight (both without the Engram table),
        missing (keys, tensors, engram_shard), ignored_tensors, config (None if keys are missing).

    Raises:
        ModelFileError: a file is missing (but the Engram shard), damaged or of another
            architecture.
    """
    files = source.files if isinstance(source, TensorFile) else read_file_set(source, engram_path)
    arch = files.headers[0].metadata.get("general.architecture")
    report = describe_draft(files) if arch == DRAFT_ARCH else describe_model(files)
    return base_report(files) | report


def base_report(files: FileSet) -> Report:
    """Return the part of the report that needs no knowledge of the model."""
    stored = list(files.tensors.values())
    totals = class_totals(stored)
    dense = [total for total in totals if total.label != "engram table"]
    weights = sum(total.weights for total in dense)
    first = files.headers[0]
    name = first.metadata.get("general.name")
    return {
        "path": files.path,
        "architecture": first.metadata.get("general.architecture"),
        "name": name if isinstance(name, str) else None,
        "gguf_version": first.version,
        "shards": [
            {"path": h.path, "bytes": h.file_size, "tensors": len(h.tensors)} for h in files.headers
        ],
        "file_bytes": sum(h.file_size for h in files.headers),
        "tensor_count": len(stored),
        "classes": [class_row(total) for total in totals],
        "types": type_rows(totals),
        "parameters": weights,
        "bits_per_weight": 8 * sum(t.num_bytes for t in dense) / weights if weights else 0.0,
    }


def class_row(total: ClassTotal) -> Report:
    """Return one class and type as a row of the report."""
    return {
        "class": total.label,
        "type": total.quant_type,
        "count": total.count,
        "weights": total.weights,
        "bytes": total.num_bytes,
    }


def type_rows(totals: Iterable[ClassTotal]) -> list[Report]:
    """Return totals per storage type over all classes, largest first."""
    rows: dict[str, Report] = {}
    for total in totals:
        row = rows.setdefault(
            total.quant_type, {"type": total.quant_type, "count": 0, "weights": 0, "bytes": 0}
        )
        row["count"] += total.count
        row["weights"] += total.weights
        row["bytes"] += total.num_bytes
    return sorted(rows.values(), key=lambda row: (-row["bytes"], row["type"]))


def describe_model(files: FileSet) -> Report:
    """Return layout, config and what is missing of a backbone."""
    model = map_model(files)
    keys: tuple[str, ...] = ()
    config: ModelConfig | None = None
    requirements: list[Requirement] = []
    known = dict(model.tensors)
    try:
        config = read_model_config(model)
        requirements = list(model_requirements(config))
    except MissingKeysError as problem:
        keys = problem.keys
    missing = check_present(files.path, config, requirements, known)
    if config is not None and config.engram is not None:
        if model.table:
            check_table(files.path, config, model.table, WEIGHT_TYPES)
        else:
            missing.append(TABLE)
    used = {requirement.name for requirement in requirements} | {TABLE}
    used |= {info.name for part in model.table for info in (part.rows, part.scales) if info}
    factors = {f.name for info in known.values() for f in info.factors}
    return {
        "layout": {"id": model.layout, "text": LAYOUTS[model.layout]},
        "missing": {
            "keys": list(keys),
            "tensors": compact_names(missing),
            "engram_shard": model.engram_expected,
        },
        "ignored_tensors": ignored(known, used | factors) if config else [],
        "config": config_facts(config) if config else None,
    }


def describe_draft(files: FileSet) -> Report:
    """Return config and what is missing of a draft."""
    check_architecture(files, DRAFT_ARCH)
    tensors = files.tensors
    keys: tuple[str, ...] = ()
    config: DraftConfig | None = None
    requirements: list[Requirement] = []
    try:
        config = read_draft_config(files.path, files.headers[0].metadata, tensors, None)
        requirements = list(draft_requirements(config))
    except MissingKeysError as problem:
        keys = problem.keys
    missing = check_present(files.path, config, requirements, tensors)
    used = {requirement.name for requirement in requirements}
    return {
        "layout": {"id": "dflash", "text": "DSpark draft"},
        "missing": {"keys": list(keys), "tensors": compact_names(missing), "engram_shard": ""},
        "ignored_tensors": ignored(tensors, used) if config else [],
        "config": config_facts(config) if config else None,
    }


def check_present(
    path: str,
    config: BlockConfig | None,
    requirements: list[Requirement],
    tensors: Mapping[str, TensorInfo],
) -> list[str]:
    """Check types and shapes of the required tensors that are there; return the names of others.

    Raises:
        ModelFileError: a tensor has a wrong type or shape.
    """
    if config is None:
        return []
    there = [r for r in requirements if r.name in tensors]
    fit_tensors(path, config, there, tensors, WEIGHT_TYPES)
    return missing_names(requirements, tensors)


def ignored(tensors: Iterable[str], used: set[str]) -> list[str]:
    """Return the names of tensors that the engine does not read, those of many layers together."""
    return [quote(name) for name in compact_names(n for n in tensors if n not in used)]


def config_facts(config: BlockConfig) -> Report:
    """Return a config as JSON values; the token map is replaced by its number of ids."""
    facts = dataclasses.asdict(config)
    engram = facts.get("engram")
    rows = config.engram.num_rows if isinstance(config, ModelConfig) and config.engram else 0
    if engram:
        engram["compressed_vocab_size"] = max(engram.pop("token_map")) + 1
        engram["num_rows"] = rows
    return facts


def render(path: str | os.PathLike[str], engram_path: str, console: Console) -> None:
    """Print what is in a file.

    Args:
        path: model (any shard) or draft.
        engram_path: as for `open_model`; may be empty.
        console: where to print.

    Raises:
        ModelFileError: as `describe`.
    """
    report = describe(path, engram_path)
    title = quote(str(report["name"] or os.path.basename(report["path"])))
    layout = report["layout"]
    console.print(Text(title, style="bold"))
    console.print(
        Text(
            f"{report['architecture']}, layout {layout['id']} ({layout['text']}), GGUF "
            f"{report['gguf_version']}, {report['tensor_count']} tensors, "
            f"{report['parameters']:,} weights and {report['bits_per_weight']:.3f} bits per weight "
            "without the Engram table"
        )
    )
    console.print(shard_table(report["shards"]))
    console.print(class_table(report["classes"]))
    if report["config"] is not None:
        console.print(fact_table(report["config"]))
    if report["ignored_tensors"]:
        console.print(Text(f"not used: {shorten(report['ignored_tensors'])}", style="dim"))
    print_missing(report["missing"], console)


def shard_table(shards: list[Report]) -> Table:
    """Return the files as a table."""
    table = Table("file", title="Files", title_justify="left")
    table.add_column("tensors", justify="right")
    table.add_column("bytes", justify="right")
    for shard in shards:
        name = Text(quote(os.path.basename(shard["path"]), 200))
        table.add_row(name, f"{shard['tensors']}", f"{shard['bytes']:,}")
    return table


def class_table(classes: list[Report]) -> Table:
    """Return bytes per class and type as a table."""
    table = Table("class", "type", title="Tensors", title_justify="left")
    for name in ("count", "weights", "bytes", "bits/weight"):
        table.add_column(name, justify="right")
    for row in classes:
        table.add_row(
            row["class"],
            row["type"],
            f"{row['count']}",
            f"{row['weights']:,}",
            f"{row['bytes']:,}",
            f"{8 * row['bytes'] / row['weights']:.3f}",
        )
    return table


def fact_table(config: Report) -> Table:
    """Return the config as a table; long lists are shortened."""
    table = Table("fact", "value", title="Model", title_justify="left")
    facts = {name: value for name, value in config.items() if name != "engram"}
    facts |= {f"engram {name}": value for name, value in (config.get("engram") or {}).items()}
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(format_fact(value)))
    return table


def format_fact(value: Any) -> str:
    """Return a fact as short text; runs of equal values are written once."""
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, (list, tuple)):
        return str(value)
    runs: list[list[Any]] = []
    for item in value:
        if runs and runs[-1][0] == item:
            runs[-1][1] += 1
        else:
            runs.append([item, 1])
    parts = []
    for item, count in runs:
        part = f"({format_fact(item)})" if isinstance(item, tuple) else format_fact(item)
        parts.append(part if count == 1 else f"{count} x {part}")
    text = ", ".join(parts)
    return text if len(text) <= 120 else f"{text[:117]}..."


def shorten(names: list[str], limit: int = 12) -> str:
    """Return the first names and the number of others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def print_missing(missing: Mapping[str, Any], console: Console) -> None:
    """Print what the file lacks, or that it is complete."""
    lines = []
    if missing["engram_shard"]:
        lines.append(f"Engram shard: {quote(missing['engram_shard'], 200)}")
    for kind in ("keys", "tensors"):
        if missing[kind]:
            lines.append(f"{kind}: {shorten(missing[kind])}")
    if not lines:
        console.print(Text("complete: nothing is missing", style="green"))
    for line in lines:
        console.print(Text(f"missing {line}", style="red"))
