"""N-gram memory of one layer, and the hashing of token ids to table rows.

Legend: T rows, H streams, D hidden, G longest n-gram, C table rows per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine.model.context import StepContext
from engine.model.parameters import empty
from engine.model_config import EngramConfig, ModelConfig
from ops.engram import add_memory, gate_streams, hash_rows


class Engram(nn.Module):
    """Projects the table rows of a token to one key per stream and a value, and adds the value."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        assert config.engram is not None, "a layer with Engram needs the model's Engram constants"
        hidden, streams = config.hidden_size, config.hc_streams
        self.eps = config.norm_eps
        self.kv = empty((streams + 1) * hidden, config.engram.width, dtype=dtype)
        self.gate_weight = empty(streams, hidden)

    def forward(self, x: Tensor, rows: Tensor, ctx: StepContext, layer: int) -> Tensor:
        """Return streams [T, H, D] plus the gated memory.

        Args:
            x: streams [T, H, D].
            rows: decoded table rows [T, C * row_dim].
            ctx: the step.
            layer: this layer's number, for probes.
        """
        projected = nn.functional.linear(rows, self.kv)
        if ctx.probe is not None:
            keys = projected.view(x.shape[0], x.shape[1] + 1, x.shape[2])[:, :-1]
            ctx.report("engram_gate", layer, gate_streams(x, keys, self.gate_weight, self.eps))
        return add_memory(x, projected, self.gate_weight, self.eps)


class EngramHasher:
    """Maps a piece of a token sequence to table rows, on the host.

    Rows depend on token ids alone, so they are known before a step starts.
    """

    def __init__(self, config: EngramConfig) -> None:
        self.config = config
        self.token_map = torch.tensor(config.token_map, dtype=torch.int64)
        self.pad = int(config.token_map[config.pad_token_id])
        self.multipliers = torch.tensor(config.multipliers, dtype=torch.int64)
        self.bucket_sizes = torch.tensor(config.bucket_sizes, dtype=torch.int64)
        self.row_offsets = torch.tensor(config.row_offsets, dtype=torch.int64)

    def rows(self, token_ids: Sequence[int], start: int, end: int) -> list[Tensor]:
        """Return the rows of tokens start ... end-1 of a sequence.

        Args:
            token_ids: the sequence from position 0, at least `end` long.
            start: first position.
            end: position after the last.

        Returns:
            One [end - start, C] int64 tensor per Engram layer, rows of the one row space.
        """
        before = self.config.ngram_size - 1
        first = max(0, start - before)
        ids = self.token_map[torch.tensor(token_ids[first:end], dtype=torch.int64)]
        missing = before - (start - first)
        ids = torch.cat((ids.new_full((missing,), self.pad), ids))
        lookback = ids.unfold(0, before + 1, 1).flip(-1)  # own id first
        return [
            hash_rows(lookback, self.multipliers[i], self.bucket_sizes[i], self.row_offsets[i])
            for i in range(len(self.config.layers))
        ]
