"""Every module can be the first one imported, without CUDA bindings and without Triton.

Kernels, which only their op's dispatch imports, are exempt.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("memory", "ops", "graphs", "engine", "server")

IMPORT_EACH_ALONE = """
import os, sys, traceback

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cuda", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import aiohttp.web, numpy, tokenizers, torch  # slow ones once; each child starts from here
failed = []
for name in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            __import__(name)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(",".join(failed))
"""

TIME_CONFIG = """
import sys, time
started = time.perf_counter()
import engine.config
elapsed = time.perf_counter() - started
heavy = [name for name in ("torch", "numpy", "aiohttp", "tokenizers") if name in sys.modules]
print(elapsed, ",".join(heavy))
"""


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def may_need_triton(parts: tuple[str, ...]) -> bool:
    """Whether a module lies where Triton and CUDA bindings may be imported at once."""
    return len(parts) >= 3 and parts[0] == "ops" and parts[2].startswith(("triton", "cuda"))


def module_names() -> list[str]:
    names = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] != "__main__" and not may_need_triton(parts):
                names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_every_module_imports_alone() -> None:
    names = module_names()
    assert len(names) > 20
    result = run_python(IMPORT_EACH_ALONE, *names)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "", f"cannot be imported first: {result.stdout}{result.stderr}"


def test_a_broken_import_is_noticed() -> None:
    result = run_python(IMPORT_EACH_ALONE, "json", "no_such_module", "triton.language")
    assert result.stdout.strip() == "no_such_module,triton.language"


def test_config_imports_quickly_and_alone() -> None:
    seconds = []
    for _ in range(5):
        result = run_python(TIME_CONFIG)
        assert result.returncode == 0, result.stderr
        elapsed, _, heavy = result.stdout.strip().partition(" ")
        assert heavy == ""
        seconds.append(float(elapsed))
    assert min(seconds) < 0.150
