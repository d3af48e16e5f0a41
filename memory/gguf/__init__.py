"""Reading GGUF files: `open_model` and `open_draft` check everything once and hand out tensors."""

from memory.gguf.model_file import DraftFile, ModelFile, open_draft, open_model
from memory.gguf.tensors import TensorInfo

__all__ = ["DraftFile", "ModelFile", "TensorInfo", "open_draft", "open_model"]
