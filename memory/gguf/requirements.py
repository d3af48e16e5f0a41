"""Which tensors, in which shapes, a model or draft of a given config must have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.errors import ModelFileError
from engine.model_config import BlockConfig, DraftConfig, ModelConfig
from memory.gguf.format import quote
from memory.gguf.table import TABLE, TablePart
from memory.gguf.tensors import TensorInfo

SHOWN_NAMES = 12


@dataclass(frozen=True)
class Requirement:
    """One tensor: name, logical shape and whether the model runs without it."""

    name: str
    shape: tuple[int, ...]
    optional: bool = False


def block_requirements(config: BlockConfig, layer: int) -> Iterator[Requirement]:
    """Yield what every layer and every draft stage has."""
    hidden, head_dim, heads = config.hidden_size, config.head_dim, config.num_heads
    inner, experts, streams = config.intermediate_size, config.num_experts, config.hc_streams
    out_rows = config.o_groups * config.o_lora_rank
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q_a.weight": (config.q_lora_rank, hidden),
        "attn_q_a_norm.weight": (config.q_lora_rank,),
        "attn_q_b.weight": (heads * head_dim, config.q_lora_rank),
        "attn_kv.weight": (head_dim, hidden),
        "attn_kv_a_norm.weight": (head_dim,),
        "attn_sinks.weight": (heads,),
        "attn_output_a.weight": (out_rows, heads * head_dim // config.o_groups),
        "attn_output_b.weight": (hidden, out_rows),
        "ffn_norm.weight": (hidden,),
        "ffn_gate_inp.weight": (experts, hidden),
        "exp_probs_b.bias": (experts,),
        "ffn_gate_exps.weight": (experts, inner, hidden),
        "ffn_up_exps.weight": (experts, inner, hidden),
        "ffn_down_exps.weight": (experts, hidden, inner),
        "ffn_gate_shexp.weight": (inner, hidden),
        "ffn_up_shexp.weight": (inner, hidden),
        "ffn_down_shexp.weight": (hidden, inner),
    }
    for part in ("attn", "ffn"):
        shapes[f"hc_{part}_fn.weight"] = (streams * (streams + 2), streams * hidden)
        shapes[f"hc_{part}_base.weight"] = (streams * (streams + 2),)
        shapes[f"hc_{part}_scale.weight"] = (3,)
    for name, shape in shapes.items():
        yield Requirement(f"blk.{layer}.{name}", shape)


def source_requirements(config: ModelConfig, layer: int) -> Iterator[Requirement]:
    """Yield what KV sources, index sources and Engram layers have in addition."""
    hidden, head_dim, index_dim = config.hidden_size, config.head_dim, config.index_head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if layer in config.kv_source_layers:
        shapes["attn_compressor_kv.weight"] = (head_dim, hidden)
        if config.compress_ratios[layer] > 1:
            shapes["attn_compressor_gate.weight"] = (head_dim, hidden)
        shapes["attn_compressor_norm.weight"] = (head_dim,)
        shapes["indexer.attn_k.weight"] = (index_dim, head_dim)
        shapes["indexer.k_norm.weight"] = (index_dim,)
    if layer in config.index_source_layers:
        shapes["indexer.attn_q_b.weight"] = (config.index_num_heads * index_dim, config.q_lora_rank)
        shapes["indexer.proj.weight"] = (config.index_num_heads, hidden)
    if config.engram is not None and layer in config.engram.layers:
        streams = config.hc_streams
        shapes["engram_kv.weight"] = ((streams + 1) * hidden, config.engram.width)
        shapes["engram_gate.weight"] = (streams, hidden)
    for name, shape in shapes.items():
        yield Requirement(f"blk.{layer}.{name}", shape)


def model_requirements(config: ModelConfig) -> Iterator[Requirement]:
    """Yield all tensors of a backbone but the Engram table, which may come in parts."""
    vocab, hidden = config.vocab_size, config.hidden_size
    yield Requirement("token_embd.weight", (vocab, hidden))
    yield Requirement("output_norm.weight", (hidden,))
    yield Requirement("output.weight", (vocab, hidden))
    for layer in range(config.num_layers):
        yield from block_requirements(config, layer)
        yield from source_requirements(config, layer)


def draft_requirements(config: DraftConfig) -> Iterator[Requirement]:
    """Yield all tensors of a DSpark draft."""
    vocab, hidden, rank = config.vocab_size, config.hidden_size, config.markov_rank
    yield Requirement("fc.weight", (hidden, hidden * len(config.target_layers)))
    yield Requirement("enc.output_norm.weight", (hidden,))
    yield Requirement("output_norm.weight", (hidden,))
    yield Requirement("markov_w1.weight", (vocab, rank))
    yield Requirement("markov_w2.weight", (vocab, rank))
    yield Requirement("conf_proj.weight", (1, hidden + rank), optional=True)
    for stage in range(config.num_layers):
        yield from block_requirements(config, stage)


def same_layout(stored: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether a stored shape has the rows of the wanted one.

    Extents of 1 in front may be left out, and the grouped `attn_output_a` may have its rows as
    [groups, rows]: only the row length and the order of the other extents count.
    """
    return stored[-1] == wanted[-1] and [n for n in stored[:-1] if n > 1] == [
        n for n in wanted[:-1] if n > 1
    ]


def missing_names(
    requirements: Iterable[Requirement], tensors: Mapping[str, TensorInfo]
) -> list[str]:
    """Return the required names that `tensors` lacks."""
    return [r.name for r in requirements if not r.optional and r.name not in tensors]


def fit_tensors(
    path: str,
    config: BlockConfig,
    requirements: Iterable[Requirement],
    tensors: Mapping[str, TensorInfo],
    supported: frozenset[str],
) -> dict[str, TensorInfo]:
    """Check every required tensor's presence, type and shape; return them with the wanted shapes.

    Args:
        path: file to blame for missing tensors.
        config: config of the model, for the grouped output projection.
        requirements: what must be there; other tensors are left out of the result.
        tensors: what is there.
        supported: type names that can be decoded.

    Raises:
        ModelFileError: tensors are missing (named compactly), or one has a wrong type or shape.
    """
    wanted = list(requirements)
    missing = missing_names(wanted, tensors)
    if missing:
        raise ModelFileError(path, missing[0], missing_text(missing))
    fitted: dict[str, TensorInfo] = {}
    for requirement in wanted:
        info = tensors.get(requirement.name)
        if info is None:
            continue
        for stored in info.factors or (info,):
            check_type(stored, supported)
        shape = info.shape
        if requirement.name.endswith(".attn_output_a.weight") and len(shape) == 3:
            grouped = (config.o_groups, config.o_lora_rank)
            shape = (shape[0] * shape[1], shape[2]) if shape[:2] == grouped else shape
        if not same_layout(shape, requirement.shape):
            raise ModelFileError(
                info.path,
                quote(info.name),
                f"shape {list(info.shape)}, but the metadata needs {list(requirement.shape)}",
            )
        fitted[requirement.name] = replace(info, shape=requirement.shape)
    return fitted


def check_type(info: TensorInfo, supported: frozenset[str]) -> None:
    """Check that the tensor's storage type can be decoded.

    Raises:
        ModelFileError: it cannot; names the supported types.
    """
    if info.quant_type not in supported:
        raise ModelFileError(
            info.path,
            quote(info.name),
            f"storage type {info.quant_type} is not supported; supported are "
            f"{', '.join(sorted(supported))}",
        )


def check_table(
    path: str,
    config: ModelConfig,
    table: Sequence[TablePart],
    supported: frozenset[str],
) -> None:
    """Check type and width of the Engram table's parts.

    Raises:
        ModelFileError: the table is missing, or names the tensor at fault.
    """
    if config.engram is None:
        return
    if not table:
        raise ModelFileError(path, TABLE, "the metadata has Engram keys, but the table is missing")
    for part in table:
        if part.scales is None and not part.inline_scales:
            check_type(part.rows, supported)
        if len(part.rows.shape) != 2 or part.row_dim != config.engram.row_dim:
            raise ModelFileError(
                part.rows.path,
                quote(part.rows.name),
                f"shape {list(part.rows.shape)}, but the metadata needs rows of "
                f"{config.engram.row_dim} columns",
            )


def missing_text(names: list[str]) -> str:
    """Return one line that names all missing tensors, those of many layers together."""
    groups = compact_names(names)
    shown = ", ".join(groups[:SHOWN_NAMES])
    more = f" and {len(groups) - SHOWN_NAMES} more groups" if len(groups) > SHOWN_NAMES else ""
    return f"{len(names)} required tensors missing: {shown}{more}"


def compact_names(names: Iterable[str]) -> list[str]:
    """Join names that differ in the layer only: blk.{0-2,5}.attn_norm.weight."""
    groups: dict[str, list[int]] = {}
    for name in names:
        match = re.fullmatch(r"blk\.(\d+)\.(.*)", name, re.DOTALL)
        if match:
            groups.setdefault(match[2], []).append(int(match[1]))
        else:
            groups[name] = []
    result = []
    for suffix, layers in groups.items():
        if not layers:
            result.append(suffix)
        elif len(layers) == 1:
            result.append(f"blk.{layers[0]}.{suffix}")
        else:
            result.append(f"blk.{{{format_ranges(sorted(layers))}}}.{suffix}")
    return result


def format_ranges(numbers: list[int]) -> str:
    """Return ascending numbers as ranges: 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
