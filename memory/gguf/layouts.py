"""Tell apart the layouts in which DeepSeek-V4.1 GGUF files exist and map them to llama.cpp's.

The layout of llama.cpp b11870 and newer ("U") is the one the rest of the project knows. Older ones
differ in the Engram tensors and in key names:

* V: first V4.1 converters; Y: the same with 32-bit primes and no `hash_layer_count`
* M: `engram_embed` tables and `indexer_compressor_*` index keys
* A: ds4 (DwarfStar): FP8 rows with their scales, keys under their Hugging Face names
* T: FP8 rows and scales in two tensors
* V4, O4: DeepSeek V4 itself, and V4.1 converted as V4; both are refused
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.errors import ModelFileError
from memory.gguf.aliases import ALIASES, GATE_FACTORS, RENAMED
from memory.gguf.format import BLOCKS, quote
from memory.gguf.split import FileSet, missing_table_error
from memory.gguf.table import BLOCK_NAME, TablePart, layers_with, table_parts
from memory.gguf.tensors import TensorInfo

MODEL_ARCH = "deepseek41"
DRAFT_ARCH = "dflash"

LAYOUTS = {
    "U": "llama.cpp b11870 or newer",
    "V": "first V4.1 converters (before 2026-10-27)",
    "Y": "first V4.1 converters, 32-bit Engram arrays",
    "M": "two engram_embed tables",
    "A": "ds4 (DwarfStar)",
    "T": "FP8 Engram tables with separate scales",
}


@dataclass(frozen=True, kw_only=True)
class MappedModel:
    """A model's files under the names of layout U."""

    path: str
    """First file, for messages about metadata."""
    layout: str
    """Layout id, a key of `LAYOUTS`."""
    metadata: Mapping[str, object]
    """Metadata; canonical keys are added to those in the file."""
    tensors: Mapping[str, TensorInfo]
    """All tensors but the Engram tables in parts, by layout-U name."""
    table: tuple[TablePart, ...]
    """Engram table parts in row order; empty without Engram or if the table is missing."""
    engram_expected: str
    """See `FileSet.engram_expected`."""


def check_architecture(files: FileSet, wanted: str) -> None:
    """Check `general.architecture`; refuse what is not a V4.1 model (or draft) with its reason.

    Args:
        files: the model's headers.
        wanted: `MODEL_ARCH` or `DRAFT_ARCH`.

    Raises:
        ModelFileError: another architecture; names it and the supported ones.
    """
    metadata, tensors = files.headers[0].metadata, files.tensors
    arch = metadata.get("general.architecture")

    def refuse(problem: str) -> ModelFileError:
        return ModelFileError(files.path, "general.architecture", problem)

    if arch == wanted:
        return
    if arch is None:
        raise refuse(f"missing; supported are {MODEL_ARCH} (models) and {DRAFT_ARCH} (drafts)")
    if not isinstance(arch, str):
        raise refuse(f"{quote(str(arch))} is not a string")
    if arch == DRAFT_ARCH:
        raise refuse(f"{arch} is a DSpark draft, not a model; give the model that it drafts for")
    if arch == MODEL_ARCH:
        raise refuse(f"{arch} is a model, not a DSpark draft ({DRAFT_ARCH})")
    if arch == "clip":
        raise refuse("clip is an image encoder (mmproj); give the text model")
    if arch == "deepseek4":
        old = any(key.startswith("deepseek4.engram.") for key in metadata)
        if old or layers_with(tensors, "engram_embd.weight"):
            raise refuse(
                "deepseek4 with Engram tensors: a V4.1 model converted before 2026-09-11; "
                "reconvert it with a current converter or download it again"
            )
        raise refuse("deepseek4 is DeepSeek V4, not V4.1; this engine runs V4.1 only")
    if arch.startswith("deepseek4"):
        raise refuse(f"{quote(arch)} is a draft of DeepSeek V4, not V4.1")
    raise refuse(
        f"{quote(arch)!r} is not supported; supported are {MODEL_ARCH} (models) and {DRAFT_ARCH} "
        "(drafts)"
    )


def detect_layout(metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> str:
    """Return the layout id of a `deepseek41` model; a model without Engram counts as U."""

    def key(name: str) -> bool:
        return f"{MODEL_ARCH}.{name}" in metadata

    if key("ple.layers"):
        return "U"
    if key("engram.encoding"):
        return "A"
    if layers_with(tensors, "engram_embd_scale.weight", "engram_q_weight.weight"):
        return "T"
    if layers_with(tensors, "engram_embed.weight") or key("engram.n_heads"):
        return "M"
    if layers_with(tensors, "engram_embd.weight", "engram_wkv.weight") or key("engram.layer_ids"):
        return "V" if key("hash_layer_count") else "Y"
    return "U"


def map_metadata(metadata: Mapping[str, object]) -> dict[str, object]:
    """Return the metadata with canonical keys added where only an alias is there."""
    mapped = dict(metadata)
    for canonical, others in ALIASES.items():
        name = f"{MODEL_ARCH}.{canonical}"
        for other in others:
            if name not in mapped and f"{MODEL_ARCH}.{other}" in mapped:
                mapped[name] = mapped[f"{MODEL_ARCH}.{other}"]
    return mapped


def map_roles(mapped: dict[str, object], tensors: Mapping[str, TensorInfo]) -> None:
    """Add source-layer and candidate keys that older layouts leave to the tensors."""
    defaults: dict[str, object] = {
        "attention.kv_source_layers": layers_with(tensors, "attn_compressor_kv.weight"),
        "attention.indexer.source_layers": layers_with(tensors, "indexer.attn_q_b.weight"),
        "hash_layer_count": 0,
    }
    if f"{MODEL_ARCH}.rope_scaling.factor" in mapped:
        defaults["rope.scaling.type"] = "yarn"
    if mapped.get(f"{MODEL_ARCH}.scoring_func") == "sqrtsoftplus":
        defaults["expert_gating_func"] = 4
    # The released model's candidate step; of other models nothing is known, so it is off there.
    released = mapped.get(f"{MODEL_ARCH}.block_count") == 40
    candidate = "attention.indexer.candidate"
    if released and f"{MODEL_ARCH}.{candidate}_source_layer" not in mapped:
        defaults |= {
            f"{candidate}_source_layer": 20,
            f"{candidate}_top_k_blocks": 2048,
            f"{candidate}_block_size": 8,
        }
    for name, value in defaults.items():
        mapped.setdefault(f"{MODEL_ARCH}.{name}", value)


def map_names(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return the tensors under layout-U names, with `engram_gate` made of its factors."""
    mapped = dict(tensors)
    for name, info in tensors.items():
        match = BLOCK_NAME.fullmatch(name)
        if match and match[2] in RENAMED:
            new = f"blk.{match[1]}.{RENAMED[match[2]]}"
            if new not in tensors:
                del mapped[name]
                mapped[new] = replace(info, name=new)
    for first, second in GATE_FACTORS:
        for layer in layers_with(tensors, first):
            gate = f"blk.{layer}.engram_gate.weight"
            q = tensors[f"blk.{layer}.{first}"]
            k = tensors.get(f"blk.{layer}.{second}")
            if k is not None and gate not in mapped:
                mapped[gate] = product(gate, q, k)
    return mapped


def product(name: str, first: TensorInfo, second: TensorInfo) -> TensorInfo:
    """Return a tensor that is the elementwise product of two stored ones, in F32.

    Raises:
        ModelFileError: the shapes differ.
    """
    if first.shape != second.shape:
        raise ModelFileError(
            second.path,
            quote(second.name),
            f"shape {list(second.shape)} differs from {list(first.shape)} of {quote(first.name)}",
        )
    size = BLOCKS["F32"][1]
    for extent in first.shape:
        size *= extent
    return replace(first, name=name, quant_type="F32", num_bytes=size, factors=(first, second))


def map_model(files: FileSet) -> MappedModel:
    """Detect the layout of a `deepseek41` model and map it to layout U.

    A missing table, missing keys and missing tensors are left for the caller to judge.

    Raises:
        ModelFileError: another architecture, or a layout that cannot be mapped.
    """
    check_architecture(files, MODEL_ARCH)
    stored = files.tensors
    layout = detect_layout(files.headers[0].metadata, stored)
    mapped = map_metadata(files.headers[0].metadata)
    tensors = map_names(stored)
    table = table_parts(files.path, layout, mapped, stored)
    if layout != "U":
        map_roles(mapped, tensors)
        # One published file lists fewer layers than it has tensors for; the tensors are right.
        layers = layers_with(tensors, "engram_kv.weight")
        if layers:
            mapped[f"{MODEL_ARCH}.ple.layers"] = layers
        if table and f"{MODEL_ARCH}.embedding_length_per_layer_input" not in mapped:
            mapped[f"{MODEL_ARCH}.embedding_length_per_layer_input"] = table[0].row_dim
    return MappedModel(
        path=files.path,
        layout=layout,
        metadata=mapped,
        tensors=tensors,
        table=table,
        engram_expected=files.engram_expected,
    )


def require_table(model: MappedModel) -> None:
    """Check that the Engram table was found if the model has one.

    Raises:
        ModelFileError: says how to link the shared file.
    """
    if model.engram_expected:
        raise missing_table_error(model.engram_expected)
