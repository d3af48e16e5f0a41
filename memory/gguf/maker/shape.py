"""The shape of a model to make, read from a configuration in the official field names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError


@dataclass(frozen=True)
class Config:
    """The fields of a `text_config` that matter here, under their official names.

    Reading a missing field raises ConfigError.
    """

    raw: Mapping[str, Any]
    special: Mapping[str, int]  # bos_token_id and so on

    @classmethod
    def from_mapping(cls, outer: Mapping[str, Any]) -> Config:
        """Return the shape in `outer`, or in its `text_config`.

        Raises:
            ConfigError: `text_config` is no object.
        """
        text = outer.get("text_config", outer)
        if not isinstance(text, Mapping):
            raise ConfigError("config.json: text_config is no object")
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        return cls(text, {k: outer.get(k, text.get(k, i)) for i, k in enumerate(names)})

    def __getitem__(self, key: str) -> Any:
        if key not in self.raw:
            raise ConfigError(f"config.json: text_config lacks {key!r}")
        return self.raw[key]

    def get(self, key: str, default: Any) -> Any:
        """Return a field, or `default` if it is absent or null."""
        value = self.raw.get(key)
        return default if value is None else value

    @property
    def layers(self) -> int:
        """Backbone layers."""
        return int(self["num_hidden_layers"])

    @property
    def hidden(self) -> int:
        """Hidden width."""
        return int(self["hidden_size"])

    @property
    def streams(self) -> int:
        """Residual streams."""
        return int(self.get("hc_mult", 4))

    @property
    def vocab(self) -> int:
        """Vocabulary size."""
        return int(self["vocab_size"])

    @property
    def engram_layers(self) -> tuple[int, ...]:
        """Layers with n-gram memory."""
        return tuple(self.get("engram_layer_ids", ()))

    @property
    def draft_blocks(self) -> int:
        """Draft stages; 0 without a draft."""
        return self.get("num_nextn_predict_layers", 0) if self.get("dspark_block_size", 0) else 0
