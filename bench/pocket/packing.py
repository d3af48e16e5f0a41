"""Documents to token ids, several packed in a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from phrases import R
from prompt import PAD, Span, render
from tasks import Task, sample


@dataclass
class Coder:
    """Span-wise encoding: plain text never turns into a special token."""

    plain: Any  # tokenizers.Tokenizer without added tokens
    special: dict[str, int]

    def encode(self, spans: list[Span]) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        weights: list[float] = []
        for s in spans:
            new = (
                [self.special[s.text]]
                if s.special
                else self.plain.encode(s.text, add_special_tokens=False).ids
            )
            ids += new
            weights += [s.weight] * len(new)
        return ids, weights


ALIGN = 8  # documents start on multiples of the candidate block, so packing changes no selection


def pack(
    r: R, coder: Coder, table: list[tuple[Task, float]], length: int, rows: int
) -> Iterator[tuple[list[list[int]], list[list[float]], list[list[int]]]]:
    """Endless batches of packed rows: ids, weight of predicting each id, start of its document."""
    pad = coder.special[PAD]
    hold: tuple[list[int], list[float]] | None = None
    while True:
        batch: tuple[list[list[int]], list[list[float]], list[list[int]]] = ([], [], [])
        for _ in range(rows):
            ids: list[int] = []
            weights: list[float] = []
            starts: list[int] = []
            misses = 0
            while length - len(ids) > 40 and misses < 3:
                doc = hold or coder.encode(render(sample(r, table)))
                hold = None
                if len(ids) + len(doc[0]) > length:
                    misses += 1
                    if misses == 3 and len(doc[0]) <= length:
                        hold = doc
                    continue
                fill = -len(doc[0]) % ALIGN
                starts += [len(ids)] * (len(doc[0]) + fill)
                ids += doc[0] + [pad] * fill
                weights += [0.0, *doc[1][1:]] + [0.0] * fill
            fill = length - len(ids)
            if fill > 0:
                starts += [len(ids)] * fill
                ids += [pad] * fill
                weights += [0.0] * fill
            batch[0].append(ids[:length])
            batch[1].append(weights[:length])
            batch[2].append(starts[:length])
        yield batch


def pack_list(
    docs: list[tuple[list[int], list[float]]], length: int, pad: int
) -> tuple[list[list[int]], list[list[float]], list[list[int]], list[tuple[int, int]]]:
    """Pack given documents in order; also returns (row, start) of each."""
    rows: tuple[list[list[int]], list[list[float]], list[list[int]]] = ([], [], [])
    where = []
    for ids, weights in docs:
        fill = -len(ids) % ALIGN
        if not rows[0] or len(rows[0][-1]) + len(ids) + fill > length:
            for part in rows:
                part.append([])
        start = len(rows[0][-1])
        where.append((len(rows[0]) - 1, start))
        rows[0][-1].extend(ids + [pad] * fill)
        rows[1][-1].extend([0.0, *weights[1:]] + [0.0] * fill)
        rows[2][-1].extend([start] * (len(ids) + fill))
    for a, b, c in zip(*rows, strict=True):
        fill = length - len(a)
        c.extend([len(a)] * fill)
        a.extend([pad] * fill)
        b.extend([0.0] * fill)
    return *rows, where
