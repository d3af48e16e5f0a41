"""Benchmark records: one JSON object per kept figure, in files under bench/results/.

Fields: name, value, unit, limit, ratio, target, device, versions, commit, command, date, notes.
`limit` is what counted bytes or operations allow (or None), `ratio` is value against it.
"""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


def device_name(device: str) -> str:
    """Return the accelerator's or processor's name."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str | None]:
    """Return the versions that a figure depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def commit() -> str:
    """Return the commit measured, with "+" if the tree had changes; empty outside a checkout."""
    if not (ROOT / ".git").exists():
        return ""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    dirty = subprocess.run(
        [*git, "status", "--porcelain"], capture_output=True, text=True, check=False
    )
    if head.returncode:
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def make_record(
    name: str,
    value: float,
    unit: str,
    *,
    device: str,
    limit: float | None = None,
    target: float | None = None,
    notes: str = "",
) -> dict[str, Any]:
    """Return one record; `value` must be finite. The commit is filled in by `write_records`."""
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{name}: {value} is not a result")
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "limit": limit,
        "ratio": None if not limit else value / limit,
        "target": target,
        "device": device_name(device),
        "versions": versions(),
        "commit": "",
        "command": "python " + " ".join(Path(a).name if a.startswith("/") else a for a in sys.argv),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "notes": notes,
    }


def write_records(path: Path, records: list[dict[str, Any]], measured_commit: str) -> None:
    """Replace the file at `path` by these records, one per line in one JSON array.

    Args:
        path: the file; folders are made.
        records: from `make_record`.
        measured_commit: the commit they were measured at (`commit()` in a checkout).
    """
    records = [record | {"commit": measured_commit} for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(record, sort_keys=False) for record in records)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
