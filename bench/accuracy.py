"""How far each float type and mode is from float32 on the CPU and from the golden vectors.

For the golden model (random weights, which amplify rounding) and for the embedded pocket model
(trained), every type runs the same tokens: prefill in one piece, then decode steps, compiled and
captured. Recorded are the worst absolute logit error over all positions, where it is, and how
often the most likely token is the same.

    python bench/accuracy.py --device cuda --out bench/results/accuracy_h200.json
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from record import RESULTS, ROOT, commit, make_record, write_records
from safetensors.numpy import load_file

from engine.config import EngineConfig
from engine.loading import load_model
from engine.pocket import model_path
from engine.runner import RowGroup
from engine.score import score_sequence
from engine.tokenizer import Tokenizer
from memory.gguf import open_model
from memory.gguf.maker import convert

GOLDEN = ROOT / "tests" / "data" / "golden"
DECODE_FROM = 100
POCKET_TEXT = (
    "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>Hello! How can I help you?"
    "<｜end▁of▁sentence｜><｜User｜>My name is Clara.<｜Assistant｜></think>"
    "Nice to meet you, Clara!<｜end▁of▁sentence｜><｜User｜>What is the capital of Japan?"
    "<｜Assistant｜></think>"
    "The capital of Japan is Tokyo.<｜end▁of▁sentence｜><｜User｜>Repeat exactly: QX7-48KD"
    "<｜Assistant｜></think>QX7-48KD<｜end▁of▁sentence｜>"
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two sets of logits [T, V] of the same tokens."""

    worst: float
    position: int
    top1_percent: float


def compare(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> Comparison:
    """Compare logits; NaN or infinity is an error, not a number."""
    if not np.isfinite(logits).all():
        raise ValueError("logits hold NaN or infinity")
    per_position = np.abs(logits - expected).max(-1)
    same = (logits.argmax(-1) == expected.argmax(-1)).mean() * 100
    return Comparison(float(per_position.max()), int(per_position.argmax()), round(float(same), 2))


def score(
    path: Path, tokens: list[int], config: EngineConfig, decode_from: int | None
) -> tuple[NDArray[np.float32], float]:
    """Return logits and the seconds that loading, compiling and capturing took."""
    start = time.perf_counter()
    loaded = load_model(path, config)
    prepared = time.perf_counter() - start
    try:
        return score_sequence(loaded.runner, tokens, None, decode_from), prepared
    finally:
        loaded.close()


def decode_rate(path: Path, tokens: list[int], config: EngineConfig, steps: int = 200) -> float:
    """Return milliseconds per decode step of one row (host included), median."""
    loaded = load_model(path, config)
    try:
        runner = loaded.runner
        runner.prefill(0, tokens, 0, len(tokens))
        ids, times = list(tokens), []
        for _ in range(steps):
            ids.append(tokens[len(ids) % len(tokens)])
            start = time.perf_counter()
            logits = runner.decode([RowGroup(0, ids, len(ids) - 1, len(ids))])
            int(logits.argmax(-1)[0])
            times.append((time.perf_counter() - start) * 1e3)
        return float(np.median(times))
    finally:
        loaded.close()


def golden_records(device: str, dtypes: list[str], path: Path) -> list[dict[str, Any]]:
    """Compare every type with the golden vectors on the golden model."""
    records = []
    for quant in (False, True):
        suffix = "quant_on" if quant else "quant_off"
        case = load_file(GOLDEN / "cases" / f"prefill_300.{suffix}.safetensors")
        steps = load_file(GOLDEN / "cases" / f"prefill_100_decode_40.{suffix}.safetensors")
        everything = "logits" in case
        rows = np.arange(300) if everything else case["positions"].astype(int)
        expected = case["logits"] if everything else case["logits_rows"]
        for dtype in dtypes:
            config = EngineConfig(
                device=device,
                dtype=dtype,
                kv_fake_quant=quant,
                max_model_len=512,
                max_num_seqs=1,
                decode_buckets=(1,),
            )
            eager = dataclasses.replace(config, compiled_decode="off", cuda_graphs="off")
            logits, _ = score(path, case["tokens"].tolist(), eager, None)
            prefill = compare(logits[rows], expected)
            top1 = round(float((logits.argmax(-1) == case["argmax"]).mean() * 100), 2)
            results = [("prefill", prefill, top1)]
            modes = [("decode_eager", eager)]
            if dtype == "float32":  # one compilation per rounding mode; the pocket model does more
                modes.append(("decode_compiled", dataclasses.replace(config, compiled_decode="on")))
            for mode, settings in modes:
                logits, _ = score(path, steps["tokens"].tolist(), settings, DECODE_FROM)
                decode = compare(logits[DECODE_FROM:], steps["decode_logits"])
                results.append((mode, decode, decode.top1_percent))
            exact = (5e-4 if quant else 1e-4) if dtype == "float32" else None
            for mode, result, agreement in results:
                name = f"accuracy.golden.{dtype}.{suffix}.{mode}"
                where = f"worst at row {result.position} of the compared rows"
                records.append(
                    make_record(
                        f"{name}.worst",
                        result.worst,
                        "logit",
                        device=device,
                        target=exact,
                        notes=where,
                    )
                )
                records.append(
                    make_record(
                        f"{name}.top1",
                        agreement,
                        "%",
                        device=device,
                        notes="against the golden argmax",
                    )
                )
                print(f"{name}: worst {result.worst:.2e}, top-1 {agreement:.1f} %", flush=True)
    return records


def pocket_records(device: str, dtypes: list[str]) -> list[dict[str, Any]]:
    """Compare every type with float32 on the CPU on the pocket model, and time decode steps."""
    path = model_path()
    with open_model(path) as file:
        tokens = Tokenizer.from_metadata(file.metadata).encode_markup(POCKET_TEXT)
    base = EngineConfig(device="cpu", max_model_len=1024, max_num_seqs=1, decode_buckets=(1,))
    expected, _ = score(path, tokens, base, None)
    records = []
    for dtype in dtypes:
        config = dataclasses.replace(base, device=device, dtype=dtype)
        logits, prepared = score(path, tokens, config, len(tokens) // 2)
        result = compare(logits, expected)
        name = f"accuracy.pocket.{dtype}"
        notes = f"{len(tokens)} tokens, second half decoded; worst at position {result.position}"
        records.append(
            make_record(f"{name}.worst", result.worst, "logit", device=device, notes=notes)
        )
        records.append(
            make_record(f"{name}.top1", result.top1_percent, "%", device=device, notes=notes)
        )
        records.append(
            make_record(
                f"start.pocket.{dtype}",
                prepared,
                "s",
                device=device,
                notes="load, compile, capture",
            )
        )
        print(f"{name}: worst {result.worst:.2e}, top-1 {result.top1_percent:.1f} %", flush=True)
        step_ms = decode_rate(path, tokens, config)
        notes = "one row, sampling on the host included; toy model, for comparison of modes only"
        records.append(
            make_record(f"decode.pocket.{dtype}", step_ms, "ms", device=device, notes=notes)
        )
        eager = dataclasses.replace(config, compiled_decode="off", cuda_graphs="off")
        eager_ms = decode_rate(path, tokens, eager, 50)
        records.append(
            make_record(f"decode.pocket.{dtype}.eager", eager_ms, "ms", device=device, notes=notes)
        )
        print(f"decode.pocket.{dtype}: {step_ms:.2f} ms, eager {eager_ms:.2f} ms", flush=True)
    return records


def main() -> None:
    """Run all comparisons and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", default="", help="comma-separated; all that suit by default")
    parser.add_argument("--out", type=Path, default=RESULTS / "accuracy_cpu.json")
    parser.add_argument("--commit", default="", help="commit measured, if this is no checkout")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    default = "float32,bfloat16,float16" if args.device == "cuda" else "float32,bfloat16"
    dtypes = (args.dtypes or default).split(",")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.gguf"
        convert(GOLDEN, path)
        records = golden_records(args.device, dtypes, path)
    records += pocket_records(args.device, dtypes)
    write_records(args.out, records, args.commit or commit())
    print(f"{len(records)} records in {args.out}")


if __name__ == "__main__":
    main()
