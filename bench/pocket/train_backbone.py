"""Training of the backbone: dense attention first, then rounded caches, then hard top-k."""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F
from backbone import Backbone
from build import save
from shape import Mode
from steps import Rows, clipped_step, decayed, loader, optimizer, set_rate
from tasks import LONG, SHORT
from torch import Tensor, nn

BALANCE_STEP = 0.002  # of the router bias, towards equal load
INDEX_LOSS = 0.3


class Guard:
    """Goes back to the last good weights, with smaller steps, when the loss runs away."""

    def __init__(self, module: nn.Module, device: str) -> None:
        self.params = list(module.parameters())
        self.safe = [p.detach().clone() for p in self.params]
        self.calm, self.best, self.bad = 1.0, math.inf, 0
        self.running = torch.zeros((), device=device)

    def add(self, loss: Tensor) -> None:
        self.running += loss

    def check(self, steps: int, opt: torch.optim.Optimizer) -> str | None:
        """Look at the mean of the last `steps` losses; return what was done, if anything."""
        mean = float(self.running) / steps
        self.running.zero_()
        if mean < self.best * 1.5 + 0.3:
            self.bad = 0
            if mean < self.best * 1.1 + 0.02:
                self.best = min(self.best, mean)
                torch._foreach_copy_(self.safe, [p.detach() for p in self.params])
            return None
        self.bad += 1
        if self.bad < 2:
            return None
        text = f"loss {mean:.3f} after {self.best:.3f}; back to the last good weights"
        torch._foreach_copy_([p.detach() for p in self.params], self.safe)
        opt.state.clear()
        self.calm, self.bad, self.best = self.calm * 0.6, 0, self.best * 1.2
        return text


def balance(backbone: Backbone, loads: Tensor) -> None:
    """Move router biases towards equal loads [layers, experts]."""
    with torch.no_grad():
        delta = BALANCE_STEP * torch.sign(loads.mean(-1, keepdim=True) - loads)
        for layer, d in zip(backbone.layers, delta, strict=True):
            layer.gate_bias.add_(d)


def train_backbone(args: argparse.Namespace, backbone: Backbone, done: float, device: str) -> None:
    """Train until the schedule or this run ends; `done` seconds of the schedule are behind us."""
    cuda = device == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    total = args.backbone_minutes * 60
    stop = min(total, done + args.this_run_minutes * 60)
    opt = optimizer(backbone, 0.05, cuda)
    seed, tokens = int(done) + 11, args.tokens
    short = loader(Rows(args.vocab, SHORT, 1024, tokens // 1024, seed), 9 if cuda else 0, cuda)
    long = loader(Rows(args.vocab, LONG, 4096, tokens // 4096, seed + 1), 5 if cuda else 0, cuda)
    guard = Guard(backbone, device)
    clock = last_save = last_log = time.time()
    step, phase = 0, ""

    def report(text: str) -> None:
        print(text, flush=True)
        with (args.out / "log.txt").open("a", encoding="utf-8") as log:
            log.write(text + "\n")

    def seconds() -> float:
        return done + time.time() - clock

    while seconds() < stop and step < args.max_steps:
        u = seconds() / total
        warm = min(1.0, (step + 1) / (150 if done else 300))
        rate = args.lr * warm * decayed(u, 0.4)
        set_rate(opt, rate * guard.calm)
        rounded = u >= args.quant_at
        mode = Mode(dtype, top_k=u >= args.topk_at, quant_cache=rounded, quant_weights=rounded)
        name = f"top_k={mode.top_k} quant={mode.quant_cache}"
        if name != phase:
            report(f"step {step} {seconds():.0f}s phase {name}")
            phase = name
        every = 100 if u < 0.15 else 5
        batch = next(long if step % every == every - 1 else short)
        ids, weights, starts = (t.to(device, non_blocking=True) for t in batch)
        ids, starts = ids.long(), starts.long()
        sample = torch.multinomial(weights.square() + 1e-3, 48) if u > 0.08 else None
        out = backbone(ids, starts, mode, sample)
        weight = F.pad(weights[:, 1:], (0, 1)).flatten()
        target = F.pad(ids[:, 1:], (0, 1)).flatten()
        logits = backbone.logits(out["y"]).flatten(0, 1)
        loss_per_token = F.cross_entropy(logits, target, reduction="none")
        loss = (loss_per_token * weight).sum() / (weight.sum() + 1e-6)
        index_loss = out["kl"] if sample is not None else torch.zeros((), device=device)
        (loss + INDEX_LOSS * index_loss).backward()
        clipped_step(opt)
        loads = torch.stack(out["loads"])
        balance(backbone, loads)
        step += 1
        loss, index_loss, loss_per_token = (t.detach() for t in (loss, index_loss, loss_per_token))
        guard.add(loss)
        if step % 50 == 0 and (text := guard.check(50, opt)):
            report(f"step {step}: {text}")
        if step % 50 == 0 or step <= 3:
            answers = (loss_per_token * (weight == 1)).sum() / ((weight == 1).sum() + 1e-6)
            if not math.isfinite(float(loss)):
                raise SystemExit("loss is not finite")
            if step % 250 == 0 or step <= 3 or time.time() - last_log > 12:
                last_log = time.time()
                report(
                    f"step {step} {seconds():.0f}s lr {rate:.5f} loss {float(loss):.4f} "
                    f"answers {float(answers):.4f} kl {float(index_loss):.4f} "
                    f"load max {float(loads.max()):.2f} min {float(loads.min()):.2f}"
                )
        if time.time() - last_save > args.save_every:
            save(args.out, "backbone", backbone, {"seconds": seconds()})
            last_save = time.time()
    save(args.out, "backbone", backbone, {"seconds": seconds()})
    report(f"backbone stopped at step {step}, {seconds():.0f} s of {total:.0f}")
