"""Writes small models of the real architecture as GGUF files, random or from a checkpoint.

Everything is held in memory: this is for test models, not for the released checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from engine.errors import ConfigError, ModelFileError
from memory.gguf.maker.engram_constants import random_token_map
from memory.gguf.maker.files import Stored, store_all, write_gguf
from memory.gguf.maker.keys import add_draft_keys, add_main_keys, add_tokenizer_keys
from memory.gguf.maker.shape import Config
from memory.gguf.maker.storage import TypePlan
from memory.gguf.maker.tensor_table import draft_tensors, main_tensors
from memory.gguf.maker.tiny_config import TINY_CONFIG, TINY_TYPES

__all__ = ["TINY_CONFIG", "TINY_TYPES", "convert", "make_random", "make_tiny"]

_TINY_DAMP = 0.1  # random residual updates of full size would amplify rounding


def make_random(
    config: Mapping[str, Any] | Path,
    out: Path,
    *,
    seed: int = 0,
    damp: float = 1.0,
    types: str = "",
    split: int = 1,
    draft: Path | None = None,
    hf_out: Path | None = None,
) -> list[Path]:
    """Draw random weights directly in their storage types and write them.

    Args:
        config: the configuration in official field names, or the path of a config.json.
        out: model file to write.
        seed: equal seeds give equal files.
        damp: factor on the matrices that write into the residual streams.
        types: storage type per class, `CLASS=TYPE,...`; float32 where nothing is said.
        split: shards; the Engram table goes alone into the last one.
        draft: also write a DSpark draft there.
        hf_out: also write the decoded weights as a checkpoint folder there.

    Returns:
        The paths written.

    Raises:
        ConfigError: the configuration lacks a field, or types or split do not work.
        ModelFileError: a file cannot be read or written.
    """
    outer = read_config(config)
    cfg = Config.from_mapping(outer)
    rng = np.random.default_rng(seed)
    token_map = random_token_map(cfg, rng) if cfg.engram_layers else []
    plan = TypePlan(types, "f32")
    written, stored = _write(out, draft, cfg, plan, None, rng, damp, token_map, split)
    if hf_out is not None:
        from memory.gguf.maker.hf_directory import write_hf

        write_hf(hf_out, outer, cfg, stored, token_map)
        written.append(hf_out)
    return written


def convert(
    hf_dir: Path, out: Path, *, types: str = "", split: int = 1, draft: Path | None = None
) -> list[Path]:
    """Convert a checkpoint folder (config.json, *.safetensors) to GGUF; arguments as make_random.

    Raises:
        ConfigError: as make_random, or a type has no encoder.
        ModelFileError: the folder lacks a tensor, or a file cannot be read or written.
    """
    from memory.gguf.maker.hf_directory import read_safetensors

    cfg = Config.from_mapping(read_config(hf_dir / "config.json"))
    hf = read_safetensors(hf_dir)
    token_map: list[int] = []
    if cfg.engram_layers:
        if "token_map" not in hf:
            raise ModelFileError(
                hf_dir, "tensor token_map", "missing; the compressed vocabulary cannot be rebuilt"
            )
        token_map = hf["token_map"].tolist()
        if len(token_map) != cfg.vocab or max(token_map) + 1 != cfg["engram_compressed_vocab_size"]:
            raise ModelFileError(
                hf_dir,
                "tensor token_map",
                "does not fit vocab_size and engram_compressed_vocab_size",
            )
    rng = np.random.default_rng(0)
    plan = TypePlan(types, "f32")
    return _write(out, draft, cfg, plan, hf, rng, 1.0, token_map, split)[0]


def make_tiny(
    out: Path, *, seed: int = 0, draft: bool = True, types: str = "", split: int = 1
) -> list[Path]:
    """Write the built-in tiny model in a mix of real storage types; returns the paths.

    The draft goes beside it as `<name>-draft.gguf`. Raises as `make_random`.
    """
    draft_path = out.with_name(f"{out.stem}-draft.gguf") if draft else None
    return make_random(
        TINY_CONFIG,
        out,
        seed=seed,
        damp=_TINY_DAMP,
        types=types or TINY_TYPES,
        split=split,
        draft=draft_path,
    )


def read_config(config: Mapping[str, Any] | Path) -> Mapping[str, Any]:
    """Return a configuration given as mapping or as the path of a JSON file.

    Raises:
        ModelFileError: the file cannot be read or is not a JSON object.
    """
    if not isinstance(config, Path):
        return config
    try:
        outer = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelFileError(config, "", f"cannot be read: {problem}") from problem
    if not isinstance(outer, dict):
        raise ModelFileError(config, "", "is not a JSON object")
    return outer


def _write(
    out: Path,
    draft: Path | None,
    cfg: Config,
    plan: TypePlan,
    hf: Mapping[str, np.ndarray[Any, Any]] | None,
    rng: np.random.Generator,
    damp: float,
    token_map: list[int],
    split: int,
) -> tuple[list[Path], list[Stored]]:
    if split < 1:
        raise ConfigError(f"split {split}: must be at least 1")
    if draft is not None and not cfg.draft_blocks:
        raise ConfigError(
            "draft: the configuration describes no DSpark blocks "
            "(num_nextn_predict_layers, dspark_block_size)"
        )

    def main_keys(writer: GGUFWriter) -> None:
        add_main_keys(writer, cfg, token_map)
        add_tokenizer_keys(writer, cfg)

    def draft_keys(writer: GGUFWriter) -> None:
        add_draft_keys(writer, cfg)
        add_tokenizer_keys(writer, cfg)

    stored = store_all(list(main_tensors(cfg)), plan, hf, rng, damp)
    written = write_gguf(out, "deepseek41", stored, main_keys, split)
    if draft is not None:
        drafted = store_all(list(draft_tensors(cfg)), plan, hf, rng, damp)
        written += write_gguf(draft, "dflash", drafted, draft_keys)
        stored = stored + drafted
    return written, stored
