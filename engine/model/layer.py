"""One layer around its two sub-layers: hyper-connections with the lagged collapse, and norms.

Legend: T rows, H streams, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from engine.model.attention import Attention, AttentionProjections
from engine.model.compressor import Compressor
from engine.model.context import StepContext
from engine.model.engram import Engram
from engine.model.indexer import Indexer
from engine.model.moe import MixtureOfExperts
from engine.model.parameters import empty
from engine.model.precision import Precision
from engine.model.state import CacheState
from engine.model_config import BlockConfig, ModelConfig
from ops.hyper_connection import collapse_streams, spread_output, stream_mix
from ops.norm import rms_norm


class StreamMixer(nn.Module):
    """Mixer of one sub-layer: its own spread and stream matrix, and the next collapse weights."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        streams = config.hc_streams
        mixes = streams * (2 + streams)
        self.fn = empty(mixes, streams * config.hidden_size)
        self.base = empty(mixes)
        self.scale = empty(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return collapse [T, H], spread [T, H] and matrix [T, H, H] for streams [T, H, D]."""
        config = self.config
        return stream_mix(
            x,
            self.fn,
            self.scale,
            self.base,
            config.hc_sinkhorn_iters,
            config.hc_eps,
            config.norm_eps,
        )


class HyperLayer(nn.Module):
    """What backbone layers and draft stages share; the attention sub-layer is passed in."""

    attention: AttentionProjections

    def __init__(self, config: BlockConfig, layer: int, precision: Precision) -> None:
        super().__init__()
        self.config = config
        self.layer = layer
        self.precision = precision
        self.attention_mixer = StreamMixer(config)
        self.ffn_mixer = StreamMixer(config)
        self.attention_norm = empty(config.hidden_size)
        self.ffn_norm = empty(config.hidden_size)
        self.moe = MixtureOfExperts(config, layer, precision.compute)

    def sublayer_input(self, x: Tensor, collapse: Tensor, norm: Tensor) -> Tensor:
        """Collapse streams [T, H, D] and normalise: [T, D] in the compute type."""
        y = collapse_streams(x, collapse, self.precision.residual)
        return rms_norm(y, norm, self.config.norm_eps).to(self.precision.compute)

    def run(
        self,
        x: Tensor,
        collapse: Tensor,
        attend: Callable[[Tensor], Tensor],
        ctx: StepContext,
    ) -> tuple[Tensor, Tensor]:
        """Run both sub-layers.

        Args:
            x: streams [T, H, D].
            collapse: [T, H] float32, made by the previous FFN mixer.
            attend: maps the normalised input [T, D] to the attention output [T, D].
            ctx: the step.

        Returns:
            streams [T, H, D] and the collapse weights [T, H] for the next layer.
        """
        attention_collapse, spread, matrix = self.attention_mixer(x)
        attention_in = self.sublayer_input(x, collapse, self.attention_norm)
        ctx.report("attn_in", self.layer, attention_in)
        attention_out = attend(attention_in)
        ctx.report("attn_out", self.layer, attention_out)
        x = spread_output(x, attention_out, spread, matrix)

        ffn_collapse, spread, matrix = self.ffn_mixer(x)
        ffn_in = self.sublayer_input(x, attention_collapse, self.ffn_norm)
        ctx.report("ffn_in", self.layer, ffn_in)
        ffn_out = self.moe(ffn_in, ctx)
        ctx.report("ffn_out", self.layer, ffn_out)
        x = spread_output(x, ffn_out.to(self.precision.residual), spread, matrix)
        ctx.report("pre_out", self.layer, ffn_collapse)
        return x, ffn_collapse


class BackboneLayer(HyperLayer):
    """A backbone layer; what it owns beyond window attention follows from its place in the model.

    Engram memory first, then compressor and indexer if the layer is a source.
    """

    def __init__(
        self, config: ModelConfig, layer: int, precision: Precision, fake_quant: bool
    ) -> None:
        super().__init__(config, layer, precision)
        self.ratio = config.compress_ratios[layer]
        source = config.kv_source(layer) if self.ratio else None
        self.attention: Attention = Attention(
            config, layer, self.ratio, source, fake_quant, precision.compute
        )
        self.engram: Engram | None = None
        self.engram_index = -1
        if config.engram is not None and layer in config.engram.layers:
            self.engram = Engram(config, precision.compute)
            self.engram_index = config.engram.layers.index(layer)
        self.compressor: Compressor | None = None
        if layer in config.kv_source_layers:
            self.compressor = Compressor(config, layer, fake_quant)
        self.indexer: Indexer | None = None
        if layer in config.index_source_layers:
            self.indexer = Indexer(config, layer, fake_quant, precision.compute)

    def add_engram(self, x: Tensor, ctx: StepContext) -> Tensor:
        """Return the streams [T, H, D] with the n-gram memory added, where the layer has one."""
        if self.engram is None:
            return x
        return self.engram(x, ctx.inputs.engram[self.engram_index], ctx, self.layer)

    def forward(
        self, x: Tensor, collapse: Tensor, ctx: StepContext, state: CacheState
    ) -> tuple[Tensor, Tensor]:
        """Run the layer on streams [T, H, D] that hold its Engram part; see `HyperLayer.run`."""

        def attend(attention_in: Tensor) -> Tensor:
            rope = ctx.rope(self.ratio)
            latent, q = self.attention.query(attention_in, rope)
            kv = self.attention.key_value(attention_in, rope)
            if self.compressor is not None:
                self.compressor(attention_in, ctx, state)
            if self.indexer is not None:
                self.indexer(attention_in, latent, ctx, state)
            return self.attention.output(self.attention(q, kv, ctx, state), rope)

        return self.run(x, collapse, attend, ctx)
