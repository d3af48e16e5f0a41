"""The DeepSeek-V4.1 text model: embedding, layers, final collapse, head.

Legend: T rows, H streams, D hidden, V vocabulary, L tapped layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.errors import ConfigError
from engine.model.context import Probe, make_context
from engine.model.inputs import StepInputs, StepShape
from engine.model.layer import BackboneLayer
from engine.model.parameters import empty
from engine.model.precision import Precision
from engine.model.state import CacheState
from engine.model_config import ModelConfig
from ops.hyper_connection import collapse_streams
from ops.kv_quant.reference import FP8_GROUP, INDEX_GROUP
from ops.norm import rms_norm
from ops.rope import inverse_frequencies, yarn_inverse_frequencies


class Backbone(nn.Module):
    """All layers of the model; no data-dependent control flow, no state of its own.

    Args:
        config: the model's facts.
        precision: float types.
        fake_quant: round cached keys and values as the reference does.
        tapped_layers: layers whose stream-averaged input is returned for the draft.

    Raises:
        ConfigError: `fake_quant` with a head width that the cache formats cannot group.
    """

    window_frequencies: Tensor
    compress_frequencies: Tensor

    def __init__(
        self,
        config: ModelConfig,
        precision: Precision,
        fake_quant: bool,
        tapped_layers: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        if fake_quant and (config.head_dim % FP8_GROUP or config.index_head_dim % INDEX_GROUP):
            raise ConfigError(
                f"kv_fake_quant needs head widths that are multiples of {FP8_GROUP}; this model "
                f"has head_dim {config.head_dim} and index_head_dim {config.index_head_dim}: "
                "use --set kv_fake_quant=off"
            )
        self.config = config
        self.precision = precision
        self.tapped_layers = tapped_layers
        self.embedding = empty(config.vocab_size, config.hidden_size, dtype=precision.compute)
        self.layers = nn.ModuleList(
            BackboneLayer(config, layer, precision, fake_quant)
            for layer in range(config.num_layers)
        )
        self.norm = empty(config.hidden_size)
        self.head = empty(config.vocab_size, config.hidden_size)
        frequencies = inverse_frequencies(config.rope_dim, config.rope_theta)
        self.register_buffer("window_frequencies", frequencies, persistent=False)
        frequencies = yarn_inverse_frequencies(
            config.rope_dim,
            config.compress_rope_theta,
            config.yarn_factor,
            config.yarn_original_context,
            config.yarn_beta_fast,
            config.yarn_beta_slow,
        )
        self.register_buffer("compress_frequencies", frequencies, persistent=False)

    def embed(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return streams [T, H, D] (all equal) and the first collapse weights [T, H] (stream 0)."""
        h = nn.functional.embedding(token_ids, self.embedding).to(self.precision.residual)
        x = h.unsqueeze(1).repeat(1, self.config.hc_streams, 1)
        first = torch.arange(self.config.hc_streams, device=h.device) == 0
        return x, first.float().expand(h.shape[0], -1)

    def forward(
        self,
        inputs: StepInputs,
        state: CacheState,
        shape: StepShape,
        probe: Probe | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run one step and store its rows in the cache.

        Args:
            inputs: the rows.
            state: the cache; written.
            shape: static facts.
            probe: sees inner values; None in production.

        Returns:
            collapsed output [T, D] before the final norm, and taps [T, L * D] for the draft.
        """
        ctx = make_context(
            inputs,
            shape,
            state.scratch_slot,
            self.window_frequencies,
            self.compress_frequencies,
            probe,
        )
        x, collapse = self.embed(inputs.token_ids)
        taps: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, BackboneLayer)
            x = layer.add_engram(x, ctx)
            ctx.report("x_in", number, x)
            if number in self.tapped_layers:
                taps[number] = x.float().mean(1).to(self.precision.residual)
            x, collapse = layer(x, collapse, ctx, state)
        ctx.report("x_out", -1, x)
        collapsed = collapse_streams(x, collapse, self.precision.residual)
        ctx.report("collapsed", -1, collapsed)
        joined = [taps[number] for number in self.tapped_layers]
        return collapsed, torch.cat(joined, -1) if joined else collapsed[:, :0]

    def logits(self, collapsed: Tensor) -> Tensor:
        """Return logits [T, V] float32 for collapsed outputs [T, D]."""
        normed = rms_norm(collapsed, self.norm, self.config.norm_eps)
        return nn.functional.linear(normed.float(), self.head)
