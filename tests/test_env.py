"""The environment is read in engine/config.py and nowhere else, C++ and CUDA text included."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("memory", "ops", "graphs", "engine", "server", "bench")
ALLOWED = {"engine/config.py"}
NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
NATIVE = re.compile(r"\b(?:secure_)?getenv(?:_s)?\s*\(|\b(?:set|put|unset)env\s*\(|\benviron\b")


def python_uses(source: str) -> list[int]:
    """Lines that touch the environment through `os`, or whose texts do in C++."""
    tree = ast.parse(source)
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in ("os", "posix")
    }
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in aliases and node.attr in NAMES:
                lines.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
            if NAMES & {alias.name for alias in node.names}:
                lines.append(node.lineno)
        elif isinstance(node, ast.Constant) and re.search(r"getenv(_s)?\s*\(", str(node.value)):
            lines.append(node.lineno)
    return sorted(lines)


def native_uses(source: str) -> list[int]:
    return [i for i, line in enumerate(source.splitlines(), 1) if NATIVE.search(line)]


def test_only_the_config_module_reads_the_environment() -> None:
    found, num_files = [], 0
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if name in ALLOWED or path.suffix not in (".py", ".cu", ".cuh", ".cpp", ".cc", ".h"):
                continue
            num_files += 1
            find = python_uses if path.suffix == ".py" else native_uses
            found += [f"{name}:{line}" for line in find(path.read_text("utf-8"))]
    assert num_files > 20
    assert not found, f"environment touched outside engine/config.py: {', '.join(found)}"


def test_the_config_module_does_read_it() -> None:
    assert python_uses((ROOT / "engine/config.py").read_text("utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "import os\nx = os.environ['A']",
        "import os as system\nx = system.getenv('A')",
        "from os import environ",
        "def f():\n    from os import getenv as g",
        "import os\nos.environ.setdefault('A', '1')",
        "SOURCE = 'char *p = getenv(\"A\");'",
    ],
)
def test_python_use_is_caught(source: str) -> None:
    assert len(python_uses(source)) == 1


def test_native_use_is_caught() -> None:
    assert native_uses('int x;\nif (std::getenv("A")) x = 1;\nsetenv("B", "1", 1);') == [2, 3]
    assert native_uses("int environment = 3; // get env") == []
