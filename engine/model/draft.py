"""DSpark block drafter: proposes the next tokens of a sequence in one non-causal pass.

Legend: B sequences, P block size, T rows, W window, H streams, D hidden, V vocabulary.

Each stage keeps its own ring of context entries, made from taps of the backbone's last layers. A
block starts with the next token and noise tokens; its rows see the context window and each other.
Only the Markov bias is sequential.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.model.attention import AttentionProjections
from engine.model.backbone import Backbone
from engine.model.context import Probe, StepContext, decode_window, make_context, write_ring
from engine.model.inputs import StepInputs, StepShape
from engine.model.layer import HyperLayer
from engine.model.parameters import empty
from engine.model.precision import Precision
from engine.model.state import CacheState
from engine.model_config import DraftConfig
from ops.attention import sink_attention
from ops.hyper_connection import collapse_streams
from ops.norm import rms_norm
from ops.rope import inverse_frequencies


@dataclass(frozen=True)
class DraftBlock:
    """Proposals of one block per sequence."""

    token_ids: Tensor
    """[B, P] int64: proposal i is for the position after block row i."""
    logits: Tensor
    """[B, P, V] float32 with the Markov bias."""
    base_logits: Tensor
    """[B, P, V] float32 without it."""
    confidence: Tensor
    """[B, P] float32, raw; zeros if the file holds no confidence head."""


class DraftStage(HyperLayer):
    """One stage: window-only attention over the ring and the whole block."""

    def __init__(
        self, config: DraftConfig, stage: int, precision: Precision, fake_quant: bool
    ) -> None:
        super().__init__(config, stage, precision)
        self.attention: AttentionProjections = AttentionProjections(
            config, fake_quant, precision.compute
        )

    def attend(
        self, x: Tensor, ctx: StepContext, ring: Tensor, slots: Tensor, last: Tensor, block: int
    ) -> Tensor:
        """Return the attention output [B * P, D] for inputs [B * P, D].

        Args:
            x: normalised block rows.
            ring: this stage's context entries [S, R, C].
            slots: [B] cache slots.
            last: [B] last final position of each sequence.
            block: P.
        """
        _, q = self.attention.query(x, ctx.window_rope)
        own = self.attention.key_value(x, ctx.window_rope)
        context, seen = decode_window(ring, slots, last, self.config.window)
        entries = torch.cat((context, own.unflatten(0, (-1, block)).to(ring.dtype)), 1)
        mask = torch.cat((seen, torch.ones_like(seen[:, :1]).expand(-1, block)), 1)
        out = sink_attention(
            q,
            entries.repeat_interleave(block, 0),
            mask.repeat_interleave(block, 0),
            None,
            None,
            self.attention.sinks,
            self.attention.scale,
        )
        return self.attention.output(out, ctx.window_rope)


class Draft(nn.Module):
    """The draft module; embedding and head are the backbone's.

    Args:
        config: the draft's facts.
        precision: float types, the backbone's.
        fake_quant: as in the backbone.
    """

    frequencies: Tensor

    def __init__(self, config: DraftConfig, precision: Precision, fake_quant: bool) -> None:
        super().__init__()
        self.config = config
        self.precision = precision
        hidden, dtype = config.hidden_size, precision.compute
        self.main_proj = empty(hidden, hidden * len(config.target_layers), dtype=dtype)
        self.main_norm = empty(hidden)
        self.stages = nn.ModuleList(
            DraftStage(config, stage, precision, fake_quant) for stage in range(config.num_layers)
        )
        self.norm = empty(hidden)
        self.markov_embed = empty(config.vocab_size, config.markov_rank)
        self.markov_head = empty(config.vocab_size, config.markov_rank)
        self.confidence = empty(1, hidden + config.markov_rank) if config.has_confidence else None
        frequencies = inverse_frequencies(config.rope_dim, config.rope_theta)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def _context(
        self, inputs: StepInputs, state: CacheState, shape: StepShape, probe: Probe | None
    ) -> StepContext:
        return make_context(
            inputs, shape, state.scratch_slot, self.frequencies, self.frequencies, probe
        )

    def project_taps(self, taps: Tensor) -> Tensor:
        """Return [T, D] from the backbone's concatenated taps [T, L * D]."""
        projected = nn.functional.linear(taps.to(self.precision.compute), self.main_proj)
        return rms_norm(projected, self.main_norm, self.config.norm_eps)

    def store_context(
        self, taps: Tensor, inputs: StepInputs, state: CacheState, shape: StepShape
    ) -> None:
        """Store the context entries of final positions in every stage's ring.

        Args:
            taps: [T, L * D] of the same rows as `inputs`.
            inputs: rows whose positions are final; padding rows point at the scratch slot.
            state: written: draft_window.
            shape: prefill or decode, as of the step that made the taps.
        """
        main = self.project_taps(taps)
        ctx = self._context(inputs, state, shape, None)
        for stage, ring in zip(self.stages, state.draft_window, strict=True):
            assert isinstance(stage, DraftStage)
            write_ring(ring, ctx, stage.attention.key_value(main, ctx.window_rope))

    def hidden(
        self,
        backbone: Backbone,
        next_ids: Tensor,
        last: Tensor,
        slots: Tensor,
        state: CacheState,
        probe: Probe | None = None,
    ) -> Tensor:
        """Run all stages on a block and return its collapsed rows [B, P, D].

        Args:
            backbone: lends embedding and residual layout.
            next_ids: [B] int64, the token at position last + 1.
            last: [B] int64, last final position.
            slots: [B] int64.
            state: read: draft_window.
            probe: sees x_out of each stage.
        """
        block = self.config.block_size
        noise = next_ids.new_full((next_ids.shape[0], block - 1), self.config.noise_token_id)
        ids = torch.cat((next_ids.unsqueeze(1), noise), 1).flatten()
        steps = torch.arange(1, block + 1, device=last.device)
        positions = (last.unsqueeze(1) + steps).flatten()
        rows = StepInputs(ids, positions, slots.repeat_interleave(block), ())
        shape = StepShape(prefill=False, context_bound=state.max_model_len)
        ctx = self._context(rows, state, shape, probe)
        x, collapse = backbone.embed(ids)
        for number, stage in enumerate(self.stages):
            assert isinstance(stage, DraftStage)
            ring = state.draft_window[number]

            def attend(
                attention_in: Tensor, stage: DraftStage = stage, ring: Tensor = ring
            ) -> Tensor:
                return stage.attend(attention_in, ctx, ring, slots, last, block)

            x, collapse = stage.run(x, collapse, attend, ctx)
            ctx.report("draft_x_out", number, x)
        return collapse_streams(x, collapse, self.precision.residual).unflatten(0, (-1, block))

    def propose(
        self,
        backbone: Backbone,
        next_ids: Tensor,
        last: Tensor,
        slots: Tensor,
        state: CacheState,
        probe: Probe | None = None,
    ) -> DraftBlock:
        """Draft greedily for B sequences; arguments as `hidden`.

        Returns:
            Proposals [B, P] with their logits [B, P, V] and confidence [B, P].
        """
        y = self.hidden(backbone, next_ids, last, slots, state, probe)
        normed = rms_norm(y, self.norm, self.config.norm_eps)
        base = nn.functional.linear(normed.float(), backbone.head)
        previous, proposals, biased, confidence = next_ids, [], [], []
        for i in range(self.config.block_size):
            markov = nn.functional.embedding(previous, self.markov_embed)
            logits = base[:, i] + nn.functional.linear(markov, self.markov_head)
            if self.confidence is not None:
                joined = torch.cat((y[:, i].float(), markov), -1)
                confidence.append(nn.functional.linear(joined, self.confidence).squeeze(-1))
            else:
                confidence.append(torch.zeros_like(logits[:, 0]))
            previous = logits.argmax(-1)
            proposals.append(previous)
            biased.append(logits)
        return DraftBlock(
            token_ids=torch.stack(proposals, 1),
            logits=torch.stack(biased, 1),
            base_logits=base,
            confidence=torch.stack(confidence, 1),
        )
