from __future__ import annotations

from pathlib import Path
from typing import Any


def test_inspect(ds41: Any, services: Any, model: Path) -> None:
    code, out, _ = ds41("inspect", model, "--json", "--engram-path", "e.gguf")
    assert (code, out) == (0, "described\n")
    assert services.calls == [("inspect", {"path": model, "engram_path": "e.gguf", "json": True})]
    assert ds41("inspect", model)[0] == 0
    assert services.calls[1][1]["json"] is False


def test_missing_file(ds41: Any, tmp_path: Path) -> None:
    code, _, err = ds41("inspect", tmp_path / "x.gguf")
    assert code == 3
    assert "x.gguf" in err
    assert ds41("inspect")[0] == 2
