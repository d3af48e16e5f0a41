"""Entry points: a model from random numbers or from a checkpoint folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from engine.errors import ConfigError
from memory.gguf.maker.checkpoint import Checkpoint, read_checkpoint, read_config
from memory.gguf.maker.checkpoint_writer import write_checkpoint
from memory.gguf.maker.engram_constants import random_token_map
from memory.gguf.maker.files import Stored, store_all, write_gguf
from memory.gguf.maker.keys import add_draft_keys, add_main_keys, add_tokenizer_keys
from memory.gguf.maker.publication import Publication
from memory.gguf.maker.shape import Config
from memory.gguf.maker.storage import TypePlan
from memory.gguf.maker.tensor_table import draft_tensors, main_tensors
from memory.gguf.maker.tiny_config import TINY_CONFIG, TINY_DAMP, TINY_TYPES
from memory.gguf.maker.vocabulary import Vocabulary, made_vocabulary


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

    Types without an encoder get random blocks with scales of the right size, so every storage type
    that the engine reads can be made.

    Args:
        config: the configuration in official field names, or the path of a config.json.
        out: model file to write.
        seed: equal seeds give equal files.
        damp: factor above 0 on the matrices that write into the residual streams; below 1 the model
            amplifies rounding less.
        types: storage type per class, `CLASS=TYPE,...`; `TYPE+TYPE` alternates over the layers,
            `all` sets the default, which is float32.
        split: number of shards; the Engram table goes alone into the last one.
        draft: also write a DSpark draft there.
        hf_out: also write the decoded weights as a checkpoint folder there, with the numbers that
            the files hold.

    Returns:
        The paths written: shards, draft, folder.

    Raises:
        ConfigError: the configuration lacks a field, or an option does not work.
        ModelFileError: a file cannot be read or written; then no file was written.
    """
    if seed < 0:
        raise ConfigError(f"seed {seed}: must be at least 0")
    if not 0 < damp < float("inf"):
        raise ConfigError(f"damp {damp}: must be above 0")
    outer = read_config(config)
    cfg = Config.from_mapping(outer)
    rng = np.random.default_rng(seed)
    token_map = random_token_map(cfg, rng) if cfg.engram_layers else []
    vocabulary = made_vocabulary(cfg.vocab)
    order = _Order(out, draft, cfg, TypePlan(types, "f32"), split, token_map, vocabulary)
    written, stored = _write(order, None, rng, damp)
    if hf_out is not None:
        write_checkpoint(hf_out, outer, cfg, stored, token_map)
        written.append(hf_out)
    return written


def convert(
    hf_dir: Path,
    out: Path,
    *,
    types: str = "",
    split: int = 1,
    draft: Path | None = None,
    hf_out: Path | None = None,
    vocabulary: Vocabulary | None = None,
) -> list[Path]:
    """Convert a checkpoint folder (config.json, *.safetensors) to GGUF.

    Arguments and result as `make_random`; only types with an encoder can be chosen.

    Args:
        vocabulary: the tokenizer to store; without it the one of random models.

    Raises:
        ConfigError: as `make_random`, or a type has no encoder, safetensors is not installed, or
            the vocabulary has another size than the configuration says.
        ModelFileError: the folder lacks a tensor, or a file cannot be read or written.
    """
    outer = read_config(hf_dir / "config.json")
    cfg = Config.from_mapping(outer)
    checkpoint = read_checkpoint(hf_dir)
    token_map = _stored_token_map(cfg, checkpoint) if cfg.engram_layers else []
    vocabulary = vocabulary or made_vocabulary(cfg.vocab)
    order = _Order(out, draft, cfg, TypePlan(types, "f32"), split, token_map, vocabulary)
    written, stored = _write(order, checkpoint, np.random.default_rng(0), 1.0)
    if hf_out is not None:
        write_checkpoint(hf_out, outer, cfg, stored, token_map)
        written.append(hf_out)
    return written


def make_tiny(
    out: Path, *, seed: int = 0, draft: bool = True, types: str = "", split: int = 1
) -> list[Path]:
    """Write the built-in tiny model in a mix of real storage types.

    Arguments, result and errors as `make_random`, but `types` replaces the mix. The draft goes
    beside the model as `<name>-draft.gguf`.
    """
    draft_path = out.with_name(f"{out.stem}-draft.gguf") if draft else None
    return make_random(
        TINY_CONFIG,
        out,
        seed=seed,
        damp=TINY_DAMP,
        types=types or TINY_TYPES,
        split=split,
        draft=draft_path,
    )


@dataclass(frozen=True)
class _Order:
    """What to write where."""

    out: Path
    draft: Path | None
    cfg: Config
    plan: TypePlan
    split: int
    token_map: list[int]
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        if not 1 <= self.split <= 1024:
            raise ConfigError(f"split {self.split}: must be 1 to 1024")
        if self.draft is not None and not self.cfg.draft_blocks:
            raise ConfigError(
                "draft: the configuration describes no DSpark stages "
                "(num_nextn_predict_layers, dspark_block_size)"
            )
        if not (self.cfg.vocab == len(self.vocabulary.tokens) == len(self.vocabulary.token_types)):
            raise ConfigError(
                f"vocabulary: {len(self.vocabulary.tokens)} tokens and "
                f"{len(self.vocabulary.token_types)} token types for vocab_size {self.cfg.vocab}"
            )
        if self.draft == self.out:
            raise ConfigError(f"draft: {self.out} is also the model's file; choose another name")

    def add_main_keys(self, writer: GGUFWriter) -> None:
        """Add all metadata of the model."""
        add_main_keys(writer, self.cfg, self.token_map)
        add_tokenizer_keys(writer, self.cfg, self.vocabulary)

    def add_draft_keys(self, writer: GGUFWriter) -> None:
        """Add all metadata of the draft."""
        add_draft_keys(writer, self.cfg)
        add_tokenizer_keys(writer, self.cfg, self.vocabulary)


def _stored_token_map(cfg: Config, checkpoint: Checkpoint) -> list[int]:
    """Token map of a checkpoint; it needs the original tokenizer, so it cannot be rebuilt."""
    token_map: list[int] = checkpoint["token_map"].tolist()
    if len(token_map) != cfg.vocab or max(token_map) + 1 != cfg["engram_compressed_vocab_size"]:
        raise checkpoint.error(
            "token_map", "does not fit vocab_size and engram_compressed_vocab_size of config.json"
        )
    return token_map


def _write(
    order: _Order, checkpoint: Checkpoint | None, rng: np.random.Generator, damp: float
) -> tuple[list[Path], list[Stored]]:
    """Write model and draft; return the paths and all stored tensors."""
    cfg, plan = order.cfg, order.plan
    with Publication() as files:
        stored = store_all(list(main_tensors(cfg)), plan, checkpoint, rng, damp)
        main_keys = order.add_main_keys
        written = write_gguf(order.out, "deepseek41", stored, main_keys, files, order.split)
        if order.draft is not None:
            drafted = store_all(list(draft_tensors(cfg)), plan, checkpoint, rng, damp)
            written += write_gguf(order.draft, "dflash", drafted, order.add_draft_keys, files)
            stored = stored + drafted
    return written, stored
