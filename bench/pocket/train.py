"""Train the pocket model: the backbone, then the draft on its frozen states.

python train.py --vocab vocab.json --out build --backbone-minutes 12 --draft-minutes 4

Stops and saves by the clock; a second call with the same --out resumes where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from build import build, restore
from kernels import compile_kernels
from train_backbone import train_backbone
from train_draft import train_draft


def parse_arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = p.add_argument
    add("--vocab", type=Path, required=True)
    add("--out", type=Path, required=True, help="checkpoints; resumed from if it holds some")
    add("--resume", type=Path, help="read the starting checkpoint here instead of --out")
    add("--backbone-minutes", type=float, default=12, help="backbone schedule, over all runs")
    add("--draft-minutes", type=float, default=4, help="0: no draft")
    add("--this-run-minutes", type=float, default=1e9, help="stop each part after this many")
    add("--tokens", type=int, default=32768, help="tokens per step, a multiple of 4096")
    add("--lr", type=float, default=2e-3)
    add("--quant-at", type=float, default=0.5, help="share of the schedule before rounding")
    add("--topk-at", type=float, default=0.6, help="share of the schedule before hard selection")
    add("--save-every", type=float, default=60, help="seconds")
    add("--max-steps", type=int, default=10**9)
    add("--seed", type=int, default=1)
    add("--no-compile", action="store_true")
    args = p.parse_args()
    if args.tokens < 4096 or args.tokens % 4096:
        p.error("--tokens must be a multiple of 4096")
    return args


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    backbone, draft, coder, _ = build(args.vocab)
    args.out.mkdir(parents=True, exist_ok=True)
    source = args.resume or args.out
    meta = restore(source, "backbone", backbone)
    restore(source, "draft", draft)
    backbone.to(device)
    draft.to(device)
    if device == "cuda" and not args.no_compile:
        compile_kernels()
    done = meta["seconds"] if meta else 0.0
    whole = args.backbone_minutes * 60 - 1
    if done < whole:
        train_backbone(args, backbone, done, device)
        done = json.loads((args.out / "backbone.json").read_text(encoding="utf-8"))["seconds"]
    if args.draft_minutes and done >= whole:
        train_draft(args, backbone, draft, coder, device)


if __name__ == "__main__":
    main()
