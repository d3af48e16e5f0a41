"""Reading GGUF files: `open_model` and `open_draft` check everything once and hand out tensors.

Names are imported when first used, so that a submodule can be imported without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memory.gguf.model_file import DraftFile, ModelFile, open_draft, open_model
    from memory.gguf.tensors import TensorInfo

__all__ = ["DraftFile", "ModelFile", "TensorInfo", "open_draft", "open_model"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "tensors" if name == "TensorInfo" else "model_file"
    return getattr(import_module(f"{__name__}.{home}"), name)
