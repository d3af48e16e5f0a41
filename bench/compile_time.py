"""Time to compile and capture decode buckets, and the size of what was captured.

python bench/compile_time.py --device cuda --buckets 1,6 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from engine.config import EngineConfig
from engine.loading import load_model
from engine.pocket import model_path


def main() -> None:
    """Load a model, prepare its buckets and print what each cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=model_path())
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--buckets", default="1")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    buckets = tuple(int(size) for size in args.buckets.split(","))
    config = EngineConfig(
        device=args.device, dtype=args.dtype, decode_buckets=buckets, compiled_decode="on"
    )
    start = time.perf_counter()
    loaded = load_model(args.model, config)
    print(f"loaded and prepared in {time.perf_counter() - start:.1f} s")
    for record in loaded.runner.graphs.records:
        print(
            f"bucket {record.bucket}: compile and warm-up {record.warm_up_s:.1f} s, "
            f"capture {record.capture_s:.2f} s"
        )
    loaded.close()


if __name__ == "__main__":
    main()
