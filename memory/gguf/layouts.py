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

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.errors import ModelFileError
from memory.gguf.format import BLOCKS, quote
from memory.gguf.header import TensorInfo
from memory.gguf.split import FileSet, missing_table_error

MODEL_ARCH = "deepseek41"
DRAFT_ARCH = "dflash"
TABLE = "per_layer_token_embd.weight"
DS4_ENCODING = "e4m3_e8m0_32_row264"

LAYOUTS = {
    "U": "llama.cpp b11870 or newer",
    "V": "first V4.1 converters (before 2026-10-27)",
    "Y": "first V4.1 converters, 32-bit Engram arrays",
    "M": "two engram_embed tables",
    "A": "ds4 (DwarfStar)",
    "T": "FP8 Engram tables with separate scales",
}

# Canonical key -> other names of the same fact, without the "deepseek41." in front.
ALIASES: dict[str, tuple[str, ...]] = {
    "block_count": ("num_hidden_layers",),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.sliding_window": ("sliding_window",),
    "attention.output_group_count": ("o_groups",),
    "attention.output_lora_rank": ("o_lora_rank",),
    "attention.compress_ratios": ("compress_ratios",),
    "attention.compress_rope_freq_base": ("compress_rope_theta",),
    "attention.kv_source_layers": ("attention.kv_source_layer_ids", "kv_source_layer_ids"),
    "attention.indexer.source_layers": (
        "attention.index_source_layers",
        "attention.index_source_layer_ids",
        "index_source_layer_ids",
    ),
    "attention.indexer.head_count": ("index_n_heads",),
    "attention.indexer.key_length": ("index_head_dim",),
    "attention.indexer.top_k": ("index_topk",),
    "attention.indexer.candidate_source_layer": (
        "attention.candidate_source_layer_id",
        "attention.candidate_source_layer",
        "candidate_source_layer_id",
    ),
    "attention.indexer.candidate_top_k_blocks": (
        "attention.candidate_topk_blocks",
        "attention.candidate_top_k_blocks",
        "attention.indexer.candidate_topk_blocks",
        "candidate_topk_blocks",
    ),
    "attention.indexer.candidate_block_size": (
        "attention.candidate_block_size",
        "candidate_block_size",
    ),
    "rope.dimension_count": ("qk_rope_head_dim",),
    "rope.freq_base": ("rope_theta",),
    "rope.scaling.factor": ("rope_scaling.factor",),
    "rope.scaling.original_context_length": ("rope_scaling.original_max_position_embeddings",),
    "rope.scaling.yarn_beta_fast": ("rope_scaling.beta_fast",),
    "rope.scaling.yarn_beta_slow": ("rope_scaling.beta_slow",),
    "expert_count": ("n_routed_experts",),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "swiglu_clamp_exp": ("swiglu_limit",),
    "hyper_connection.count": ("hc_mult",),
    "hyper_connection.sinkhorn_iterations": ("hc_sinkhorn_iters",),
    "hyper_connection.epsilon": ("hc_eps",),
    "embedding_length_per_layer_input": ("engram.key_length", "engram.head_dim"),
    "ple.layers": ("engram.layer_ids", "engram.layers"),
    "ple.ngram_size": ("engram.max_ngram_size", "engram.ngram_size"),
    "ple.heads_per_ngram": ("engram.head_count", "engram.n_heads"),
    "ple.layer_multipliers": ("engram.multipliers", "engram.hash_multipliers"),
    "ple.head_offsets": ("engram.offsets", "engram.head_offsets"),
    "ple.head_vocab_sizes": ("engram.primes", "engram.head_bucket_sizes"),
    "engram.pad_token_id": ("engram.pad_id",),
}

# Tensor names, without "blk.L.", that only differ in name.
RENAMED = {
    "attn_kv_norm.weight": "attn_kv_a_norm.weight",
    "ffn_exp_probs_b.bias": "exp_probs_b.bias",
    "indexer_compressor_kv.weight": "indexer.attn_k.weight",
    "indexer_compressor_norm.weight": "indexer.k_norm.weight",
    "engram_wkv.weight": "engram_kv.weight",
}
# Pairs whose elementwise product is engram_gate.
GATE_FACTORS = (
    ("engram_q.weight", "engram_k.weight"),
    ("engram_q_norm.weight", "engram_k_norm.weight"),
    ("engram_q_weight.weight", "engram_k_weight.weight"),
)
BLOCK_NAME = re.compile(r"blk\.(\d{1,6})\.(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class TablePart:
    """One stored table of the Engram memory: some consecutive rows of the one row space."""

    rows: TensorInfo
    """The rows: a decodable type, or I8 holding E4M3 codes."""
    scales: TensorInfo | None
    """I8 tensor of E8M0 scales per 32 columns (layout T), else None."""
    inline_scales: bool
    """Whether each row ends in its E8M0 scales (layout A)."""
    layer: int | None
    """The only backbone layer that reads this part; None if all do."""

    @property
    def num_rows(self) -> int:
        """Rows of this part."""
        return self.rows.shape[0]

    @property
    def row_dim(self) -> int:
        """Decoded columns of a row; with inline scales 33 bytes hold 32 columns."""
        width = self.rows.shape[-1]
        return width // 33 * 32 if self.inline_scales else width


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


def layers_with(tensors: Mapping[str, TensorInfo], *names: str) -> list[int]:
    """Return the sorted layers that have a tensor `blk.L.<name>` for any of `names`."""
    found = set()
    for tensor in tensors:
        match = BLOCK_NAME.fullmatch(tensor)
        if match and match[2] in names:
            found.add(int(match[1]))
    return sorted(found)


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
        raise refuse(f"{arch} is a DSpark draft, not a model; give it as draft_path")
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


def table_parts(
    path: str, layout: str, metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo]
) -> tuple[TablePart, ...]:
    """Return the Engram table in row order: the joined table if there is one, else one per layer.

    Raises:
        ModelFileError: an encoding of the rows that is not supported.
    """
    if TABLE in tensors:
        return (TablePart(rows=tensors[TABLE], scales=None, inline_scales=False, layer=None),)
    if layout == "A":
        encoding = metadata.get(f"{MODEL_ARCH}.engram.encoding")
        if encoding != DS4_ENCODING:
            raise ModelFileError(
                path,
                f"{MODEL_ARCH}.engram.encoding",
                f"{quote(str(encoding))} is a row format of ds4 (DwarfStar) that is not supported; "
                f"supported is {DS4_ENCODING}",
            )
    suffix = "engram_embed.weight" if layout == "M" else "engram_embd.weight"
    parts = []
    for layer in layers_with(tensors, suffix) if layout != "U" else ():
        scales = tensors.get(f"blk.{layer}.engram_embd_scale.weight") if layout == "T" else None
        rows = tensors[f"blk.{layer}.{suffix}"]
        if layout in "AT":
            check_fp8_part(rows, scales, inline=layout == "A")
        parts.append(TablePart(rows=rows, scales=scales, inline_scales=layout == "A", layer=layer))
    return tuple(parts)


def check_fp8_part(rows: TensorInfo, scales: TensorInfo | None, *, inline: bool) -> None:
    """Check types and shapes of a table of FP8 bytes.

    Raises:
        ModelFileError: names the tensor and what it must be.
    """

    def check(info: TensorInfo, valid: Callable[[tuple[int, ...]], bool], needed: str) -> None:
        if info.quant_type != "I8" or len(info.shape) != 2 or not valid(info.shape):
            raise ModelFileError(
                info.path,
                quote(info.name),
                f"{info.quant_type} {list(info.shape)}; FP8 rows need I8 {needed}",
            )

    if inline:
        check(rows, lambda shape: shape[1] % 33 == 0, "with 33 bytes per 32 columns")
        return
    check(rows, lambda shape: shape[1] % 32 == 0, "with a multiple of 32 columns")
    if scales is None:
        name = rows.name.replace("engram_embd", "engram_embd_scale")
        raise ModelFileError(
            rows.path, quote(name), "the scales of the FP8 Engram rows are missing"
        )
    wanted = (rows.shape[0], rows.shape[1] // 32)
    check(scales, lambda shape: shape == wanted, str(list(wanted)))


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
