"""Sort tensors into the classes in which people think about a model's size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from memory.gguf.tensors import TensorInfo

# First match wins; names are those of all layouts.
CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (label, re.compile(pattern))
    for label, pattern in (
        ("engram table", r"per_layer_token_embd\.|.*\.engram_(embd|embed)(_scale)?\."),
        ("experts", r".*_exps\."),
        ("shared expert", r".*_shexp\."),
        ("router", r".*\.(ffn_gate_inp|exp_probs_b|ffn_exp_probs_b|exp_probs_b_vl)\."),
        ("engram projection", r".*\.engram_"),
        ("norms and sinks", r".*(_norm|\.attn_sinks)\.|output_norm\."),
        ("compressor", r".*\.attn_compressor_"),
        ("indexer", r".*\.indexer[._]"),
        ("attention", r".*\.attn_"),
        ("hyper-connections", r".*\.hc_"),
        ("embedding", r"token_embd\."),
        ("output", r"output\."),
        ("draft heads", r"(fc|markov_w1|markov_w2|conf_proj)\."),
    )
)


@dataclass(frozen=True)
class ClassTotal:
    """Totals of one class and storage type."""

    label: str
    """Class, for people."""
    quant_type: str
    """GGUF type name."""
    count: int
    """Tensors."""
    weights: int
    """Elements."""
    num_bytes: int
    """Stored bytes."""


def class_of(name: str) -> str:
    """Return the class of a tensor by its name; "other" if it is not known."""
    for label, pattern in CLASSES:
        if pattern.match(name):
            return label
    return "other"


def class_totals(tensors: Iterable[TensorInfo]) -> list[ClassTotal]:
    """Return totals per class and type, in the order of `CLASSES`, largest type first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for info in tensors:
        entry = sums.setdefault((class_of(info.name), info.quant_type), [0, 0, 0])
        entry[0] += 1
        entry[1] += prod(info.shape)
        entry[2] += info.num_bytes
    order = [label for label, _ in CLASSES] + ["other"]
    totals = [ClassTotal(label, kind, *entry) for (label, kind), entry in sums.items()]
    return sorted(totals, key=lambda t: (order.index(t.label), -t.num_bytes, t.quant_type))
