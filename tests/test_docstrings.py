"""Every public module, class, function and method says what it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("memory", "ops", "graphs", "engine", "server")
EXEMPT_DECORATORS = ("overload", "setter", "override")

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public classes, functions and methods; names inside functions are private."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from public_definitions(node.body, prefix)
            if not isinstance(node, ast.With):
                yield from public_definitions(node.orelse, prefix)
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        decorators = [ast.unparse(d).rpartition(".")[2] for d in node.decorator_list]
        if not set(decorators) & set(EXEMPT_DECORATORS):
            yield prefix + node.name, node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{prefix}{node.name}.")


def undocumented(source: str) -> list[str]:
    tree = ast.parse(source)
    missing = [] if not tree.body or ast.get_docstring(tree) else ["the module"]
    return missing + [
        name for name, node in public_definitions(tree.body) if not ast.get_docstring(node)
    ]


def without_shapes(source: str) -> list[str]:
    """Public functions over tensors that leave the shapes open.

    A shape is something in brackets, or the word itself ("any shape"), in the docstring of the
    function or of its class.
    """
    if not re.search(r"^(import|from) torch\b", source, re.M):
        return []  # another class may be called Tensor
    tree = ast.parse(source)
    docs: dict[str, str] = {}
    missing = []
    for name, node in public_definitions(tree.body):
        docs[name] = ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            continue
        parts = (node.args, node.returns) if node.returns else (node.args,)
        signature = " -> ".join(map(ast.unparse, parts))
        text = docs[name] + docs.get(name.rpartition(".")[0], "")
        if re.search(r"\bTensor\b", signature) and not re.search(r"\[|\bshapes?\b", text):
            missing.append(name)
    return missing


def sources() -> list[tuple[str, str]]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]


def test_public_names_have_docstrings() -> None:
    found = [f"{path}: {name}" for path, text in sources() for name in undocumented(text)]
    assert not found, "no docstring:\n" + "\n".join(found)


def test_functions_over_tensors_state_shapes() -> None:
    found = [f"{path}: {name}" for path, text in sources() for name in without_shapes(text)]
    assert not found, "no shape in the docstring:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("x = 1", ["the module"]),
        ('"""Doc."""\ndef f(): pass', ["f"]),
        ('"""Doc."""\nasync def f(): pass', ["f"]),
        ('"""Doc."""\nclass A:\n    """Doc."""\n    def m(self): pass', ["A.m"]),
        ('"""Doc."""\nif True:\n    class A: pass', ["A"]),
        ('"""Doc."""\ndef _f(): pass\nclass _A:\n    def m(self): pass', []),
        ('"""Doc."""\nclass A:\n    """Doc."""\n    @x.setter\n    def x(self, v): pass', []),
        ("", []),
    ],
)
def test_missing_docstring_is_caught(source: str, missing: list[str]) -> None:
    assert undocumented(source) == missing


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ('def f(x: Tensor):\n    """Doc."""', ["f"]),
        ('def f() -> torch.Tensor:\n    """Doc."""', ["f"]),
        ('def f(x: Tensor) -> Tensor:\n    """Doc."""', ["f"]),
        ('def f(x: Tensor):\n    """Args: x: float32 [T, V]."""', []),
        ('def f(x: Tensor):\n    """Of any shape."""', []),
        ('def f(x: TensorEntry):\n    """Doc."""', []),
        ('class A:\n    """[T]"""\n    def m(self, x: Tensor):\n        """Doc."""', []),
        ('class A:\n    """Doc."""\n    def m(self, x: Tensor):\n        """Doc."""', ["A.m"]),
    ],
)
def test_missing_shape_is_caught(source: str, missing: list[str]) -> None:
    assert without_shapes("from torch import Tensor\n" + source) == missing
    assert without_shapes(source) == []
