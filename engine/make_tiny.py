"""Writes a small random model with the real layout, for the command line and for trials."""

from __future__ import annotations

from pathlib import Path

from memory.gguf import maker


def make_tiny(
    out: str | Path, *, seed: int = 0, draft: bool = True, types: str = "", split: int = 1
) -> list[Path]:
    """Write a tiny model and return the files.

    Args:
        out: the file to write; the draft goes beside it as `<name>-draft.gguf`.
        seed: equal seeds give equal files.
        draft: also write a draft.
        types: storage type per class, `CLASS=TYPE,...`; empty takes a mix of real types.
        split: number of shards.

    Raises:
        ConfigError: unknown class or type, or a split that does not work.
        EngineError: the disk is full or the folder cannot be written.
    """
    return maker.make_tiny(Path(out), seed=seed, draft=draft, types=types, split=split)
