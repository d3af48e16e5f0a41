"""The command line with the scripted engine behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.cli import main


class FakeServices:
    """Same interface as `server.services.EngineServices`; remembers how it was called."""

    def __init__(self, engine_class: Any, model: Path) -> None:
        self._engine_class = engine_class
        self._model = model
        self.on_request: Any = None
        self.problem: Exception | None = None
        self.engines: list[Any] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def load_engine(self, path: Path, config: Any, on_progress: Any) -> Any:
        self.calls.append(("load_engine", {"path": path, "config": config}))
        on_progress("reading weights", 0.5)
        if self.problem is not None:
            raise self.problem
        self.engines.append(self._engine_class(config, self.on_request))
        return self.engines[-1]

    def score_tokens(self, path: Path, config: Any, token_ids: Any, **options: Any) -> Any:
        options["on_progress"]("scoring", 0.5)
        self.calls.append(
            ("score_tokens", {"path": path, "config": config, "tokens": token_ids, **options})
        )
        if self.problem is not None:
            raise self.problem
        return np.arange(len(token_ids) * 7, dtype=np.float32).reshape(-1, 7)

    def inspect(self, path: Path, engram_path: str, as_json: bool, console: Any) -> None:
        self.calls.append(("inspect", {"path": path, "engram_path": engram_path, "json": as_json}))
        console.print("described")

    def make_tiny(self, path: Path, **options: Any) -> list[Path]:
        self.calls.append(("make_tiny", {"path": path, **options}))
        return [path, path.with_suffix(".draft")]

    def embedded_model(self) -> Path:
        return self._model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def services(engine_class: Any, model: Path) -> FakeServices:
    return FakeServices(engine_class, model)


@pytest.fixture
def ds41(
    services: FakeServices, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, str, str]]:
    """Run one command; returns exit code, standard output and standard error."""

    def run(*argv: object) -> tuple[int, str, str]:
        code = main([str(word) for word in argv], services)  # type: ignore[arg-type]
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


@pytest.fixture
def json_file(tmp_path: Path) -> Callable[[Any], Path]:
    def write(value: Any) -> Path:
        path = tmp_path / "input.json"
        path.write_text(json.dumps(value), "utf-8")
        return path

    return write
