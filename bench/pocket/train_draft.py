"""Training of the draft on the frozen backbone's own next-token distributions."""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F
from backbone import Backbone
from build import save
from draft import Draft
from packing import Coder
from prompt import SYSTEM
from shape import Mode
from steps import Rows, clipped_step, decayed, loader, optimizer, set_rate
from tasks import SHORT
from torch import Tensor
from train_backbone import BALANCE_STEP

ANCHORS = 64  # draft blocks per row
LATER_TOKENS = 0.85  # factor on the weight of each further token of a block
CONFIDENCE_LOSS = 0.1


def teacher_outputs(
    backbone: Backbone, ids: Tensor, starts: Tensor, mode: Mode
) -> tuple[Tensor, Tensor]:
    """Final states [B, S, D] and taps [B, S, 3D]."""
    # With gradients: without them this forward gave NaN on the GPU (cause not found).
    out = backbone(ids, starts, mode)
    return out["y"].detach(), out["taps"].detach()


def train_draft(
    args: argparse.Namespace, backbone: Backbone, draft: Draft, coder: Coder, device: str
) -> None:
    """Train until the schedule ends."""
    cuda = device == "cuda"
    mode = Mode(torch.bfloat16 if cuda else torch.float32, quant_weights=True)
    total = min(args.draft_minutes, args.this_run_minutes) * 60
    noise, n = coder.special[SYSTEM], draft.cfg["dspark_block_size"]
    opt = optimizer(draft, 0.02, cuda)
    rows = loader(Rows(args.vocab, SHORT, 1024, args.tokens // 1024, 991), 12 if cuda else 0, cuda)
    falling = torch.tensor([LATER_TOKENS**i for i in range(n)], device=device)
    clock = last_save = time.time()
    step = 0
    while time.time() - clock < total and step < args.max_steps:
        u = (time.time() - clock) / total
        set_rate(opt, args.lr * min(1.0, (step + 1) / 200) * decayed(u, 0.3))
        ids, weights, starts = (t.to(device, non_blocking=True) for t in next(rows))
        ids, starts = ids.long(), starts.long()
        y, taps = teacher_outputs(backbone, ids, starts, mode)
        with torch.no_grad():
            # The first drafted token, two after the anchor, is an answer token.
            usable = F.pad(weights[:, 2:], (0, 2)).square() + 1e-5
            usable[:, -n - 2 :] = 0
            anchors = torch.multinomial(usable, ANCHORS).sort(-1).values
            b, a = anchors.shape
            # Positions whose logits predict the drafted tokens.
            flat = (anchors.unsqueeze(-1) + 1 + torch.arange(n, device=device)).flatten(1)
            states = y.gather(1, flat.unsqueeze(-1).expand(-1, -1, y.shape[-1]))
            teacher = backbone.logits(states).view(b * a, n, -1)
            previous = ids.gather(1, flat).view(b * a, n)
            after = (flat + 1).clamp(max=ids.shape[1] - 1)
            answer = weights.gather(1, after).view(b * a, n)
            same = starts.gather(1, after).view(b * a, n) == starts.gather(1, anchors).view(-1, 1)
            weight = falling * answer.clamp(min=0.02) * same
        base, states, loads = draft(
            backbone, taps, starts, anchors, ids.gather(1, anchors + 1), noise, mode
        )
        logits = base + draft.markov(previous)
        divergence = F.kl_div(
            torch.log_softmax(logits, -1),
            torch.log_softmax(teacher, -1),
            log_target=True,
            reduction="none",
        ).sum(-1)
        loss = (divergence * weight).sum() / weight.sum()
        hit = logits.argmax(-1) == teacher.argmax(-1)
        confidence = F.binary_cross_entropy_with_logits(
            draft.confidence_logit(states.detach(), previous), hit.float(), reduction="none"
        )
        (loss + CONFIDENCE_LOSS * (confidence * weight).sum() / weight.sum()).backward()
        clipped_step(opt)
        loss = loss.detach()
        with torch.no_grad():
            for stage, load in zip(draft.stages, loads, strict=True):
                stage.gate_bias.add_(BALANCE_STEP * torch.sign(load.mean() - load))
        step += 1
        if step % 200 == 0 or step <= 2:
            ok = (answer == 1) & same
            run = hit.float().cumprod(-1)[ok.all(-1)].sum(-1).mean()
            hits = " ".join(f"{float(hit[:, i][ok[:, i]].float().mean()):.3f}" for i in range(n))
            print(
                f"draft step {step} {time.time() - clock:.0f}s loss {float(loss):.4f} "
                f"hits {hits} accepted {float(run):.2f}",
                flush=True,
            )
        if step % 100 == 0 and not math.isfinite(float(loss)):
            raise SystemExit("draft loss is not finite")
        if time.time() - last_save > args.save_every:
            save(args.out, "draft", draft, {"seconds": time.time() - clock})
            last_save = time.time()
    save(args.out, "draft", draft, {"seconds": time.time() - clock})
