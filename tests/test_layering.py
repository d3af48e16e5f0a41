"""Imports point one way only; checked on the source, imports inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = ("memory", "ops", "graphs", "engine", "server")
MAY_IMPORT = {
    "memory": {"memory"},
    "ops": {"ops", "memory"},
    "graphs": {"graphs", "ops", "memory"},
    "engine": {"engine", "graphs", "ops", "memory"},
    "server": {"server", "engine"},
}
LEAVES = ("engine.errors", "engine.config", "engine.model_config")
ENGINE_INTERNAL = ("engine.model", "engine.sampler", "engine.sampling_state")
"""Modules about tensors, which the server never sees."""
THIRD_PARTY_HOME = {
    "aiohttp": ("server",),
    "tokenizers": ("engine",),
    "torch": ("memory", "ops", "graphs", "engine"),
}
DRIVER_PACKAGES = ("cuda", "triton", "cupy", "pycuda")


def module_name(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: str, source: str) -> Iterator[tuple[int, str, bool]]:
    """(line, module, only for type checkers) of every import, absolute or relative."""
    package = module_name(path).split(".")
    if Path(path).name != "__init__.py":
        package = package[:-1]

    def walk(node: ast.AST, checking: bool) -> Iterator[tuple[int, str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, checking) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{prefix}.{alias.name}", checking
        elif isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            name = node.args[0]
            if called in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value), checking
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from walk(child, True)
            for child in node.orelse:
                yield from walk(child, checking)
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, checking)

    yield from walk(ast.parse(source), False)


def inside(module: str, parents: tuple[str, ...]) -> bool:
    """Whether `module` is one of `parents` or a name below one."""
    return any(module == parent or module.startswith(parent + ".") for parent in parents)


def may_touch_driver(path: str) -> bool:
    parts = Path(path).parts
    if path == "memory/driver.py":
        return True
    return len(parts) >= 3 and parts[0] == "ops" and parts[2].startswith(("triton", "cuda"))


def fault(path: str, target: str, checking: bool) -> str | None:
    """Why the file at `path` may not import `target`, or None."""
    own, top = module_name(path), target.split(".")[0]
    layer = own.split(".")[0]
    if top in ("tests", "bench"):
        return "nothing imports tests or bench"
    if top in DRIVER_PACKAGES and not may_touch_driver(path):
        return "drivers and Triton belong below ops/*/cuda*, ops/*/triton* and in memory/driver.py"
    if top in THIRD_PARTY_HOME and layer not in THIRD_PARTY_HOME[top]:
        return f"{top} belongs in {', '.join(THIRD_PARTY_HOME[top])}"
    if top not in LAYERS or inside(target, LEAVES):
        return None
    if own in LEAVES:
        return "a leaf module imports leaf modules only"
    allowed = set(MAY_IMPORT[layer])
    if checking:
        allowed.update(LAYERS[: LAYERS.index(layer) + 2])
    if top not in allowed:
        return f"{layer} may import {', '.join(sorted(allowed))} and the leaf modules"
    if layer == "server" and inside(target, ENGINE_INTERNAL):
        return "the server sees no tensors"
    return None


def violations(path: str, source: str) -> list[str]:
    return [
        f"{path}:{line}: imports {target}: {reason}"
        for line, target, checking in imported_modules(path, source)
        if (reason := fault(path, target, checking))
    ]


def test_project_follows_the_layers() -> None:
    paths = [p for layer in LAYERS for p in sorted((ROOT / layer).rglob("*.py"))]
    assert len(paths) > 20
    found = [
        line
        for path in paths
        for line in violations(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("memory/a.py", "import ops"),
        ("memory/a.py", "from engine.request import Event"),
        ("memory/a.py", "def f():\n    from engine import request"),
        ("memory/gguf/a.py", "from ...engine import request"),
        ("ops/a.py", "from graphs import buckets"),
        ("ops/a.py", "import importlib\nimportlib.import_module('graphs.buckets')"),
        ("ops/a.py", "__import__('server.app')"),
        ("graphs/a.py", "import engine.model.layer"),
        ("graphs/a.py", "if True:\n    import engine"),
        ("engine/a.py", "from server.app import make_app"),
        ("engine/a.py", "import bench.demo"),
        ("engine/config.py", "import memory.host"),
        ("engine/errors.py", "from engine import request"),
        ("engine/a.py", "import aiohttp.web"),
        ("server/a.py", "from memory.gguf import open_model"),
        ("server/a.py", "from engine.model import load"),
        ("server/a.py", "from engine.model.load import load_model"),
        ("server/a.py", "import torch"),
        ("ops/rope/a.py", "import triton"),
        ("engine/a.py", "def f():\n    from cuda.bindings import driver"),
        ("memory/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import graphs"),
        ("memory/a.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import ops"),
        ("memory/a.py", "from tests import conftest"),
    ],
)
def test_wrong_import_is_caught(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("memory/a.py", "from engine.errors import ModelFileError\nimport engine.config, numpy"),
        ("memory/gguf/a.py", "from . import format\nfrom .. import host\nimport torch.cuda"),
        ("memory/a.py", "if TYPE_CHECKING:\n    import ops"),
        ("ops/rope/triton_kernels.py", "import triton"),
        ("ops/rope/cuda/launch.py", "from cuda.bindings import nvrtc"),
        ("memory/driver.py", "from cuda.bindings import driver"),
        ("graphs/a.py", "import ops.rope, memory\nfrom engine.model_config import ModelConfig"),
        ("engine/model/a.py", "import graphs, ops, memory, tokenizers, engine.request"),
        ("engine/config.py", "from engine.errors import ConfigError"),
        (
            "server/a.py",
            "from engine.api import Engine\nfrom engine.model_config import ModelConfig",
        ),
    ],
)
def test_right_import_passes(path: str, source: str) -> None:
    assert violations(path, source) == []
