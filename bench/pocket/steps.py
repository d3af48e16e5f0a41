"""What both trainings have in common: batches, parameter groups, learning rate."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizer
import torch
from packing import pack
from tasks import Task
from torch import Tensor, nn

SPEED = {"matrix": 1.0, "plain": 1.0, "router": 0.25, "mixer": 0.06}
"""Step size by kind of parameter.

Mixers and routers see unit-size inputs of many channels, so they need much smaller steps.
"""


class Rows(torch.utils.data.IterableDataset):
    """Endless packed batches: ids, weights and document starts, each [rows, length]."""

    def __init__(
        self, vocab: Path, table: list[tuple[Task, float]], length: int, rows: int, seed: int
    ) -> None:
        self.vocab, self.table, self.length, self.rows, self.seed = vocab, table, length, rows, seed

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        info = torch.utils.data.get_worker_info()
        r = random.Random(self.seed * 1000 + (info.id if info else 0))
        coder, _ = tokenizer.load(self.vocab)
        for ids, weights, starts in pack(r, coder, self.table, self.length, self.rows):
            yield (
                torch.tensor(ids, dtype=torch.int32),
                torch.tensor(weights),
                torch.tensor(starts, dtype=torch.int32),
            )


def loader(rows: Rows, workers: int, cuda: bool) -> Iterator[Any]:
    return iter(
        torch.utils.data.DataLoader(
            rows,
            batch_size=None,
            num_workers=workers,
            prefetch_factor=6 if workers else None,
            pin_memory=cuda,
        )
    )


def kind(name: str, p: Tensor) -> str:
    leaf = name.rsplit(".", 1)[-1]
    if leaf.startswith("hc_"):
        return "mixer"
    if leaf in ("gate", "i_wp", "confidence"):
        return "router"
    if p.ndim < 2 or "tables" in name or "embed" in leaf or leaf in ("e_q", "e_k"):
        return "plain"
    return "matrix"


def optimizer(module: nn.Module, decay: float, cuda: bool) -> torch.optim.AdamW:
    """AdamW whose groups carry their speed; weight decay for matrices only."""
    sets: dict[str, list[nn.Parameter]] = {name: [] for name in SPEED}
    for name, p in module.named_parameters():
        if p.requires_grad:
            sets[kind(name, p)].append(p)
    groups = [
        {"params": v, "speed": SPEED[k], "weight_decay": decay if k == "matrix" else 0.0}
        for k, v in sets.items()
        if v
    ]
    return torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8, fused=cuda)


def set_rate(opt: torch.optim.Optimizer, rate: float) -> None:
    for group in opt.param_groups:
        group["lr"] = rate * group["speed"]


def decayed(u: float, flat: float) -> float:
    """1 until `flat` of the schedule, then a half cosine down to 0.03; u in 0 ... 1."""
    if u < flat:
        return 1.0
    return 0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * min(1.0, (u - flat) / (1 - flat))))


def clipped_step(opt: torch.optim.Optimizer) -> None:
    params = [p for group in opt.param_groups for p in group["params"]]
    nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
    opt.step()
    opt.zero_grad(set_to_none=True)
