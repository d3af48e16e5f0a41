"""One tensor of a model to make: its name in the file, shape, class, and what it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from memory.gguf.maker.checkpoint import Checkpoint

Array = np.ndarray[Any, Any]

Join = Literal["one", "stack", "rows", "product"]

CLASSES = {
    "embedding": "token embedding",
    "output": "output head",
    "attention": "q, kv and output projections of attention",
    "compressor": "compressor projections",
    "indexer": "indexer projections",
    "router": "expert router (default f32)",
    "hyper": "hyper-connection mixing matrices (default f32)",
    "experts": "routed experts; experts.gate, experts.up, experts.down override one of the three",
    "shared": "shared expert",
    "engram": "Engram table",
    "engram_proj": "Engram projection",
    "draft": "DSpark fc, Markov and confidence matrices",
}
"""Classes that a storage type can be chosen for; all other tensors are float32."""


@dataclass(frozen=True)
class Tensor:
    """A GGUF tensor and the checkpoint tensors it is made of."""

    name: str
    """Name in the GGUF file."""
    shape: tuple[int, ...]
    """Row-major; the file stores the reverse."""
    category: str
    """A key of `CLASSES`, an `experts.` part, or a class that is always float32."""
    sources: tuple[str, ...]
    """Official names of the checkpoint tensors."""
    join: Join = "one"
    """stack: along a new first axis; rows: along the first axis; product: elementwise."""
    layer: int = 0
    """Layer number; draft stages count on after the backbone."""
    gain: float = 1.0
    """Scale of a random matrix relative to 1/sqrt(row length)."""

    def gather(self, checkpoint: Checkpoint) -> Array:
        """Return the float32 value made of checkpoint tensors, in the tensor's shape.

        Raises:
            ModelFileError: a source is missing or of another size.
        """
        parts = [checkpoint[source].astype(np.float32, copy=False) for source in self.sources]
        size = sum(part.size for part in parts) // (2 if self.join == "product" else 1)
        if size != np.prod(self.shape) or (
            self.join != "rows" and len({p.shape for p in parts}) > 1
        ):
            raise checkpoint.error(
                self.sources[0],
                f"has shape {list(parts[0].shape)}, needed {list(self.shape)} in all "
                f"for {self.name}; config.json does not fit the weights",
            )
        if self.join == "stack":
            value = np.stack(parts)
        elif self.join == "rows":
            value = np.concatenate([part.reshape(-1, self.shape[-1]) for part in parts])
        elif self.join == "product":
            value = np.multiply(*parts)
        else:
            value = parts[0]
        return np.ascontiguousarray(value.reshape(self.shape))

    def scatter(self, value: Array, rows: list[int]) -> dict[str, Array]:
        """Return the inverse of gather; of a product the second factor becomes 1.

        `rows` are the sizes of the parts for join "rows".
        """
        if self.join == "stack":
            return dict(zip(self.sources, value, strict=True))
        if self.join == "rows":
            return dict(zip(self.sources, np.split(value, np.cumsum(rows)[:-1]), strict=True))
        if self.join == "product":
            return {self.sources[0]: value, self.sources[1]: np.ones_like(value)}
        return {self.sources[0]: value}
