"""Measure the exported model on held-out prompts.

Loss and exact answers per task, needles by length, drafts, tool calls, and a few chats.

python evaluate.py --vocab vocab.json --decoded decoded --out evaluation.json
"""

from __future__ import annotations

import argparse
import json
import random
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from answers import SIMPLE
from backbone import Backbone
from build import build, load_decoded
from draft import Draft
from packing import Coder, pack_list
from prompt import ADDED, BOS, EOS, PAD, SYSTEM, UNTHINK, Chat, Turn, dump, render, render_calls
from shape import Mode
from tasks import CALCULATOR, WEATHER, Task, multi, needle, persona, simple, tool

from memory.gguf.maker.vocabulary import byte_alphabet

MODE = Mode()
SENTENCE_TOKENS = 14  # of a filler sentence, about


def forward(backbone: Backbone, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [S, V] and taps [S, 3D] of one prompt."""
    device = backbone.embed.device
    pad = -len(ids) % 8
    x = torch.tensor([ids + [2] * pad], device=device)
    with torch.no_grad():
        out = backbone(x, torch.zeros_like(x), MODE)
        return backbone.logits(out["y"])[0, : len(ids)], out["taps"][:, : len(ids)]


def generate(backbone: Backbone, ids: list[int], limit: int) -> list[int]:
    ids = list(ids)
    start = len(ids)
    while len(ids) - start < limit:
        ids.append(int(forward(backbone, ids)[0][-1].argmax()))
        if ids[-1] == 1:
            break
    return ids[start:]


def pick(r: random.Random, task: Task, seen_ok: bool = False) -> Chat:
    while True:
        chat = task(r)
        if seen_ok or chat.held_out():
            return chat


def task_table() -> dict[str, Task]:
    return {
        **{n: simple(n) for n in SIMPLE},
        "multi": multi,
        "persona": persona,
        "needle_short": needle(0, 8),
        "needle_long": needle(6, 50),
        "tool": tool,
    }


def rates(backbone: Backbone, coder: Coder, count: int) -> dict[str, Any]:
    """Loss and share of documents whose answer tokens are all the greedy choice."""
    out: dict[str, Any] = {}
    for name, task in task_table().items():
        r = random.Random(99)
        good, loss, n = 0, 0.0, 0
        docs = [coder.encode(render(pick(r, task, name == "about"))) for _ in range(count)]
        docs = [d for d in docs if len(d[0]) <= 1024]
        ids, _, starts, where = pack_list(docs, 1024, 2)
        ok, ce = [], []
        for at in range(0, len(ids), 8):
            x, s = (
                torch.tensor(v[at : at + 8], device=backbone.embed.device) for v in (ids, starts)
            )
            with torch.no_grad():
                z = backbone.logits(backbone(x, s, MODE)["y"])
            ok.append(F.pad(z[:, :-1].argmax(-1) == x[:, 1:], (1, 0), value=True).cpu())
            ce.append(
                F.pad(
                    F.cross_entropy(z[:, :-1].transpose(1, 2), x[:, 1:], reduction="none"), (1, 0)
                ).cpu()
            )
        okt, cet = torch.cat(ok), torch.cat(ce)
        for d, (row, start) in zip(docs, where, strict=True):
            need = torch.tensor([w == 1.0 for w in d[1]])
            span = slice(start, start + len(d[0]))
            good += bool(okt[row, span][need].all())
            loss += float(cet[row, span][need].sum())
            n += int(need.sum())
        out[name] = {"exact": good / len(docs), "loss": loss / n, "documents": len(docs)}
        print(name, out[name], flush=True)
    return out


def needles(backbone: Backbone, coder: Coder, lengths: list[int], count: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for length in lengths:
        r, good, sizes = random.Random(5), 0, []
        while len(sizes) < count:
            sentences = length // SENTENCE_TOKENS
            chat = pick(r, needle(sentences, sentences))
            ids, weights = coder.encode(render(chat))
            if not length * 0.85 <= len(ids) <= length * 1.15:
                continue
            z, _ = forward(backbone, ids)
            need = [i for i, w in enumerate(weights) if w == 1.0]
            good += all(int(z[i - 1].argmax()) == ids[i] for i in need)
            sizes.append(len(ids))
        out[str(length)] = {
            "exact": good / count,
            "documents": count,
            "mean_tokens": sum(sizes) / count,
        }
        print("needle", length, out[str(length)], flush=True)
    return out


def drafts(backbone: Backbone, draft: Draft, coder: Coder, count: int) -> dict[str, Any]:
    """Accepted tokens per block at temperature 0, walking through each answer as a decoder would."""
    out: dict[str, Any] = {}
    noise, n = coder.special[SYSTEM], draft.cfg["dspark_block_size"]
    device = backbone.embed.device
    for name, task in task_table().items():
        r = random.Random(17)
        blocks = accepted = 0
        for _ in range(count):
            ids, weights = coder.encode(render(pick(r, task, name == "about")))
            z, taps = forward(backbone, ids)
            best = z.argmax(-1)
            x = torch.tensor([ids], device=device)
            anchors = torch.arange(0, len(ids) - 1, device=device)[None]
            with torch.no_grad():
                base, _, _ = draft(
                    backbone, taps, torch.zeros_like(x), anchors, x[:, 1:], noise, MODE
                )
                prev, chosen = x[0, 1:], []
                for i in range(n):
                    prev = (base[:, i] + draft.markov(prev)).argmax(-1)
                    chosen.append(prev)
            d = torch.stack(chosen, -1).cpu()
            p = (
                next(i for i, w in enumerate(weights) if w == 1.0) - 1
            )  # the first answer token is drafted from here
            while p < len(ids) - 2:
                if weights[p + 2] != 1.0:
                    p += 1
                    continue
                a = 0
                while (
                    a < n
                    and p + 2 + a < len(ids)
                    and weights[p + 2 + a] == 1.0
                    and int(d[p, a]) == int(best[p + 1 + a]) == ids[p + 2 + a]
                ):
                    a += 1
                blocks, accepted = blocks + 1, accepted + a
                p += 1 + a
        out[name] = {"accepted_per_block": accepted / max(blocks, 1), "blocks": blocks}
        print("draft", name, out[name], flush=True)
    return out


CALL = re.compile(
    r'\n*<｜DSML｜ calls>\n(<｜DSML｜ invoke name="[\w-]+">\n(<｜DSML｜ parameter name="[^"]*" string="(true|false)">.*?</｜DSML｜ parameter>\n)*</｜DSML｜ invoke>\n)+</｜DSML｜ calls>',
    re.S,
)


def tool_calls(backbone: Backbone, coder: Coder, tokens: list[str], count: int) -> dict[str, Any]:
    """Generate the first assistant turn of tool prompts: is the markup whole, and the call the expected one?"""
    r, whole, same = random.Random(23), 0, 0
    for _ in range(count):
        while True:
            chat = pick(r, tool)
            if chat.task == "tool":
                break
        last = next(i for i, t in enumerate(chat.turns) if t.role == "assistant")
        first = Chat(
            "tool", chat.turns[: last + 1], chat.system, chat.thinking, chat.effort, chat.tools
        )
        text = decode(
            tokens, generate(backbone, coder.encode(render(first, open_turn=True))[0], 200)
        )
        expected = "".join(s.text for s in render_calls(chat.turns[last].calls))
        answer = text.split(UNTHINK)[-1]
        whole += bool(CALL.fullmatch(answer.removesuffix(EOS)))
        same += answer.removesuffix(EOS) == expected
    return {"well_formed": whole / count, "expected_call": same / count, "documents": count}


def decode(tokens: list[str], ids: list[int]) -> str:
    special = {*ADDED, BOS, EOS, PAD}
    table = {char: byte for byte, char in enumerate(byte_alphabet())}
    raw = b"".join(
        tokens[i].encode() if tokens[i] in special else bytes(table[c] for c in tokens[i])
        for i in ids
    )
    return raw.decode("utf-8", "replace")


def conversations(backbone: Backbone, coder: Coder, tokens: list[str]) -> list[str]:
    out = []
    weather = WEATHER
    scripts: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["Hello", "My name is Clara.", "What is the capital of Japan?", "What is my name?"]),
        ({"thinking": True}, ["What is 17 + 25?", "Sort these numbers: 41, 7, 23, 19"]),
        (
            {"thinking": True, "tools": [CALCULATOR, weather]},
            [
                "What is the weather in Oslo?",
                "=" + dump({"city": "Oslo", "temperature": -3, "sky": "snowy"}),
            ],
        ),
        (
            {},
            [
                "Repeat exactly: QX7-48KD",
                "The old baker walks to the market at night. The code for falcon is 73914. Nobody at the river knows where the tall nurse lost the hat. The code for orchid is 20856.\n\nWhat is the code for falcon?",
            ],
        ),
        (
            {"system": "You are Nina, a pilot from Lisbon."},
            [
                "Who are you?",
                "Tell me a story about a cat and a owl at the bridge. Use the name Leo and a lamp.",
            ],
        ),
    ]
    for options, users in scripts:
        turns: list[Turn] = []
        text = ""
        for user in users:
            turns.append(Turn("tool", user[1:]) if user.startswith("=") else Turn("user", user))
            turns.append(Turn("assistant"))
            chat = Chat("chat", turns, **options)
            ids = coder.encode(render(chat, open_turn=True))[0]
            if len(turns) == 2:
                text += decode(tokens, ids)
            else:
                text += f"\n[{turns[-2].role}] {turns[-2].text}\n[assistant] "
            made = decode(tokens, generate(backbone, ids, 110))
            text += made
            body = made.removesuffix(EOS)
            if chat.thinking and UNTHINK in body:
                turns[-1].reasoning, body = body.split(UNTHINK, 1)
            if "<｜DSML｜ calls>" in body:
                turns[-1].calls = [
                    (
                        m[0],
                        dict(
                            re.findall(
                                r'parameter name="([^"]*)" string="true">(.*?)</', m[1], re.S
                            )
                        ),
                    )
                    for m in re.findall(
                        r'invoke name="([^"]*)">(.*?)</｜DSML｜ invoke>', body, re.S
                    )
                ]
                body = body.split("\n\n<｜DSML｜ calls>")[0]
            turns[-1].text = body
        out.append(text)
        print("----\n" + text, flush=True)
    return out


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--vocab", type=Path, required=True)
    p.add_argument("--decoded", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--count", type=int, default=40, help="documents per task")
    p.add_argument("--needle-count", type=int, default=8)
    p.add_argument("--lengths", default="512,1024,2048,4096")
    args = p.parse_args()
    backbone, draft, coder, content = build(args.vocab)
    load_decoded(args.decoded, backbone, draft)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    backbone.to(device).eval()
    draft.to(device).eval()
    result: dict[str, Any] = {}

    def keep(key: str, value: Any) -> None:
        result[key] = value
        args.out.write_text(
            json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )

    keep("tasks", rates(backbone, coder, args.count))
    keep("chats", conversations(backbone, coder, content["tokens"]))
    keep(
        "needles",
        needles(backbone, coder, [int(x) for x in args.lengths.split(",")], args.needle_count),
    )
    keep("drafts", drafts(backbone, draft, coder, max(4, args.count // 4)))
    keep("tools", tool_calls(backbone, coder, content["tokens"], max(4, args.count // 4)))


if __name__ == "__main__":
    main()
