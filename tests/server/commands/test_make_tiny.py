from __future__ import annotations

from pathlib import Path
from typing import Any


def test_options(ds41: Any, services: Any, tmp_path: Path) -> None:
    out = tmp_path / "tiny.gguf"
    code, stdout, _ = ds41("make-tiny", out)
    assert code == 0
    assert stdout.splitlines() == [str(out), str(tmp_path / "tiny.draft")]
    words = ["--seed", 7, "--no-draft", "--types", "experts=q2_k", "--split", 3]
    assert ds41("make-tiny", out, *words)[0] == 0
    assert services.calls == [
        ("make_tiny", {"path": out, "seed": 0, "draft": True, "types": "", "split": 1}),
        (
            "make_tiny",
            {"path": out, "seed": 7, "draft": False, "types": "experts=q2_k", "split": 3},
        ),
    ]
    assert ds41("make-tiny", out, "--seed", "x")[0] == 2
