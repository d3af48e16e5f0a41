"""Every module with code has a test file at the same place below tests/."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("memory", "ops", "graphs", "engine", "server")
EXEMPT_NAMES = ("__init__.py", "__main__.py")


def has_code(source: str) -> bool:
    """Whether a file defines anything; tables of values need no test of their own."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, definitions) for node in ast.walk(ast.parse(source)))


def missing_mirrors(root: Path) -> list[str]:
    """`module -> expected test file` for each module of the project at `root` without one."""
    missing = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if path.name in EXEMPT_NAMES or not has_code(path.read_text("utf-8")):
                continue
            module = path.relative_to(root)
            tests = root / "tests" / module.parent
            if not (tests / f"test_{path.name}").exists() and not any(
                tests.glob(f"test_{path.stem}_*.py")
            ):
                missing.append(f"{module} -> {(tests / f'test_{path.name}').relative_to(root)}")
    return missing


def test_every_module_has_its_tests() -> None:
    missing = missing_mirrors(ROOT)
    assert not missing, "modules without tests:\n" + "\n".join(missing)


def test_a_missing_mirror_is_caught(tmp_path: Path) -> None:
    for folder in (*FOLDERS, "tests/ops"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "ops/__init__.py").write_text("def f(): pass\n")
    (tmp_path / "ops/table.py").write_text("SIZES = {1: 2}\n")
    (tmp_path / "ops/rope.py").write_text("def rotate(): pass\n")
    (tmp_path / "ops/norm.py").write_text("def norm(): pass\n")
    (tmp_path / "tests/ops/test_norm_large.py").touch()
    assert missing_mirrors(tmp_path) == ["ops/rope.py -> tests/ops/test_rope.py"]
    (tmp_path / "tests/ops/test_rope.py").touch()
    assert missing_mirrors(tmp_path) == []
