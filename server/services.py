"""What the command line needs of the engine, imported only when a command asks for it.

Importing the engine loads torch, which takes seconds; `--help` and `render` do not need it. Tests
pass an object of the same interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config import EngineConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from engine.api import Engine

Progress = Callable[[str, float], None]
"""Hears the name of a stage and the share of it that is done, 0 to 1."""


class EngineServices:
    """The engine's entry points."""

    def load_engine(self, path: Path, config: EngineConfig, on_progress: Progress) -> Engine:
        """Load a model and start its engine."""
        from engine.api import load_engine

        return load_engine(path, config, on_progress)

    def score_tokens(
        self,
        path: Path,
        config: EngineConfig,
        token_ids: Sequence[int],
        *,
        chunk: int | None,
        decode_from: int | None,
        on_progress: Progress,
    ) -> NDArray[np.float32]:
        """Return teacher-forced logits, float32 [T, V]."""
        from engine.score import score_tokens

        return score_tokens(
            path,
            config,
            token_ids,
            chunk=chunk,
            decode_from=decode_from,
            on_progress=on_progress,
        )

    def inspect(self, path: Path, engram_path: str, as_json: bool, console: Console) -> None:
        """Print what is in a model file."""
        from engine.inspect_model import inspect

        inspect(path, engram_path, as_json, console)

    def make_tiny(
        self, path: Path, *, seed: int, draft: bool, types: str, split: int
    ) -> list[Path]:
        """Write a seeded tiny model and return the files written."""
        from engine.make_tiny import make_tiny

        return make_tiny(path, seed=seed, draft=draft, types=types, split=split)

    def embedded_model(self) -> Path:
        """Return the path of the model that comes with the package."""
        from engine.pocket import model_path

        return model_path()
