"""The embedded pocket model: a small trained model of the real architecture, with its draft.

It chats, echoes, spells, writes JSON and calls tools; see the README beside this file for what it
cannot do. Used when no model is named.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def model_path() -> Path:
    """Return the path of the embedded model, a GGUF file of 10 MB."""
    return Path(str(files(__name__) / "pocket.gguf"))


def draft_path() -> Path:
    """Return the path of its DSpark draft, a GGUF file of 1.6 MB."""
    return Path(str(files(__name__) / "pocket-draft.gguf"))
