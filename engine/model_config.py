"""Facts of one model, as its file states them; a leaf module, standard library only.

`memory/gguf` fills these from metadata, `engine/model` builds modules from them. Nothing here is a
switch: switches are in `engine/config.py`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """What a backbone layer and a draft stage have in common.

    Widths are in elements, `norm_eps` and `hc_eps` are dimensionless.
    """

    num_layers: int
    """Number of layers (backbone) or stages (draft)."""
    hidden_size: int
    """Width of one residual stream."""
    vocab_size: int
    """Number of token ids."""
    context_length: int
    """Longest context the model was made for, in tokens."""
    num_heads: int
    """Query heads; one latent key/value vector serves all of them."""
    head_dim: int
    """Width of a head and of the latent key/value vector."""
    rope_dim: int
    """Rotated channels: the last `rope_dim` of `head_dim` and of `index_head_dim`."""
    q_lora_rank: int
    """Width of the query's low-rank bottleneck."""
    o_groups: int
    """Groups of heads of the block-diagonal output projection."""
    o_lora_rank: int
    """Output width of one group of the output projection."""
    window: int
    """Sliding window in tokens, the query's own included."""
    norm_eps: float
    """Epsilon of every RMSNorm (1e-20 in the released model, not representable in float16)."""
    rope_theta: float
    """RoPE base of layers without compression."""
    num_experts: int
    """Routed experts of a layer."""
    num_experts_used: int
    """Routed experts chosen for a token (top-k)."""
    num_shared_experts: int
    """Shared experts of a layer; this architecture has exactly 1."""
    intermediate_size: int
    """Inner width of an expert."""
    expert_weights_scale: float
    """Factor on the routing weights after normalisation."""
    expert_weights_norm: bool
    """Whether the chosen routing weights are divided by their sum."""
    swiglu_limits: tuple[float, ...]
    """Clamp of the routed experts per layer; 0 means no clamp."""
    swiglu_limits_shared: tuple[float, ...]
    """Clamp of the shared expert per layer; 0 means no clamp."""
    hc_streams: int
    """Residual streams of the hyper-connections."""
    hc_sinkhorn_iters: int
    """Row and column normalisations of the stream mixing matrix."""
    hc_eps: float
    """Epsilon inside the hyper-connection mix."""


@dataclass(frozen=True, kw_only=True)
class EngramConfig:
    """Constants of the n-gram memory. All integers are exact 64-bit values."""

    layers: tuple[int, ...]
    """Backbone layers that read the memory, ascending."""
    ngram_size: int
    """Longest n-gram, in tokens (4: 2-, 3- and 4-grams are hashed)."""
    num_heads: int
    """Hash heads per n-gram length."""
    row_dim: int
    """Columns of a table row."""
    multipliers: tuple[tuple[int, ...], ...]
    """[layers][ngram_size] odd hash multipliers, up to 47 bits."""
    bucket_sizes: tuple[tuple[int, ...], ...]
    """[layers][(ngram_size - 1) * num_heads] primes, n-gram length outermost."""
    row_offsets: tuple[tuple[int, ...], ...]
    """Same shape: first row of each bucket range in the one row space of all layers (global)."""
    pad_token_id: int
    """Token id that stands before the first position; mapped through `token_map`."""
    token_map: tuple[int, ...]
    """[vocab_size] token id -> compressed id."""

    @property
    def num_columns(self) -> int:
        """Table rows per token and layer."""
        return (self.ngram_size - 1) * self.num_heads

    @property
    def width(self) -> int:
        """Width of the concatenated rows of one token and layer."""
        return self.num_columns * self.row_dim

    @property
    def num_rows(self) -> int:
        """Rows the table must have."""
        return max(
            offset + size
            for offsets, sizes in zip(self.row_offsets, self.bucket_sizes, strict=True)
            for offset, size in zip(offsets, sizes, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig(BlockConfig):
    """A DeepSeek-V4.1 backbone."""

    compress_ratios: tuple[int, ...]
    """Per backbone layer: 0 window only, 1 or 2 tokens per compressed row."""
    compress_rope_theta: float
    """RoPE base of layers with compression (with YaRN)."""
    kv_source_layers: tuple[int, ...]
    """Layers that own a compressor and index keys, ascending."""
    index_source_layers: tuple[int, ...]
    """Layers that own an indexer, ascending."""
    index_num_heads: int
    """Index query heads."""
    index_head_dim: int
    """Width of an index key."""
    index_top_k: int
    """Compressed rows selected per query."""
    candidate_source_layer: int | None
    """Layer whose block scores restrict later indexers; None = no candidate step."""
    candidate_top_k_blocks: int
    """Blocks kept by the candidate step."""
    candidate_block_size: int
    """Compressed rows of a candidate block."""
    yarn_factor: float
    """YaRN extension factor."""
    yarn_original_context: int
    """YaRN original context in tokens."""
    yarn_beta_fast: float
    """YaRN rotations above which a frequency is kept."""
    yarn_beta_slow: float
    """YaRN rotations below which a frequency is divided by the factor."""
    engram: EngramConfig | None
    """N-gram memory, or None."""

    def kv_source(self, layer: int) -> int:
        """Return the latest KV source at or before `layer`: the owner of its compressed rows."""
        return max(s for s in self.kv_source_layers if s <= layer)

    def index_source(self, layer: int) -> int:
        """Return the layer whose top-k `layer` uses: the latest index source at or before it."""
        return max(s for s in self.index_source_layers if s <= layer)


@dataclass(frozen=True, kw_only=True)
class DraftConfig(BlockConfig):
    """A DSpark block drafter (`dflash`). Embedding and head are the backbone's."""

    block_size: int
    """Tokens proposed per block."""
    target_layers: tuple[int, ...]
    """Backbone layers whose stream-averaged input is tapped, in concatenation order."""
    noise_token_id: int
    """Token that fills the undecided places of a block."""
    markov_rank: int
    """Rank of the Markov bias head."""
    has_confidence: bool
    """Whether the file holds the confidence head."""
