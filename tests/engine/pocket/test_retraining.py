"""The training code of the embedded model still runs against this project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TRAINING = ROOT / "bench" / "pocket"

EXPORT_UNTRAINED = """
import sys
from pathlib import Path
import torch
from build import build
from export import export
from tokenizer import to_vocabulary

torch.manual_seed(1)
vocab, out = Path(sys.argv[1]), Path(sys.argv[2])
backbone, draft, coder, content = build(vocab)
for path in export(backbone, draft, to_vocabulary(content), out, out / "decoded"):
    print(path)
"""

PACK = """
import random, sys
from pathlib import Path
from packing import pack
from tasks import SHORT
from tokenizer import load

coder, _ = load(Path(sys.argv[1]))
ids, weights, starts = next(pack(random.Random(2), coder, SHORT, 1024, 3))
assert len(ids) == len(weights) == len(starts) == 3
for row, weight, start in zip(ids, weights, starts, strict=True):
    assert len(row) == len(weight) == len(start) == 1024
    assert set(weight) <= {0.0, 0.05, 1.0} and 1.0 in weight
    assert all(at <= i and at % 8 == 0 for i, at in enumerate(start))
    assert {row[at] for at in set(start)} <= {0, 2}  # documents begin with BOS, the rest is padding
print("packed")
"""


def run(*arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=TRAINING,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_tokenizer_is_trained(tmp_path: Path) -> None:
    out = tmp_path / "vocab.json"
    first = run("tokenizer.py", str(out), "--vocab", "400", "--documents", "200")
    assert "400 tokens" in first
    content = json.loads(out.read_text("utf-8"))
    assert len(set(content["tokens"])) == 400
    assert len(content["merges"]) == 400 - 3 - 256 - content["markers"]


def test_documents_are_packed() -> None:
    assert run("-c", PACK, "vocab.json") == "packed\n"


def test_untrained_model_is_exported(tmp_path: Path) -> None:
    written = run("-c", EXPORT_UNTRAINED, "vocab.json", str(tmp_path)).splitlines()
    assert [Path(line).name for line in written] == ["pocket.gguf", "pocket-draft.gguf", "decoded"]
    sizes = [(tmp_path / name).stat().st_size for name in ("pocket.gguf", "pocket-draft.gguf")]
    assert sizes == [
        (ROOT / "engine" / "pocket" / name).stat().st_size
        for name in ("pocket.gguf", "pocket-draft.gguf")
    ]
