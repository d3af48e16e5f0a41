"""Files stay small enough to be read in one go; pure tables are exempt."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("memory", "ops", "graphs", "engine", "server", "bench", "tests")
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h", ".html", ".js", ".css")
REPORT_ABOVE, FAIL_ABOVE = 400, 500


def is_table(source: str) -> bool:
    """Whether a Python file holds nothing but a docstring, imports and assigned values."""
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    return all(isinstance(node, allowed) for node in ast.parse(source).body)


def long_files() -> list[tuple[int, str]]:
    found = []
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix not in SUFFIXES or name.startswith("bench/pocket/"):
                continue
            source = path.read_text("utf-8")
            num_lines = len(source.splitlines())
            if num_lines > REPORT_ABOVE and not (path.suffix == ".py" and is_table(source)):
                found.append((num_lines, name))
    return sorted(found, reverse=True)


def test_no_file_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    found = long_files()
    with capsys.disabled():
        for num_lines, name in found:
            print(f"\n{name}: {num_lines} lines, look for a split (limit {FAIL_ABOVE})", end="")
    assert [entry for entry in found if entry[0] > FAIL_ABOVE] == []


def test_tables_are_told_from_code() -> None:
    assert is_table('"""Sizes."""\nimport math\nA = {1: 2}\nB: int = 3\n"""doc"""\n')
    assert not is_table("A = 1\ndef f():\n    return A\n")
    assert not is_table("class A:\n    x = 1\n")
