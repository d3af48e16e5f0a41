"""Hyper-connections."""

from ops.hyper_connection.reference import (
    collapse_streams,
    mix_weights,
    spread_output,
    stream_mix,
)
from ops.hyper_connection.schema import sinkhorn

__all__ = ["collapse_streams", "mix_weights", "sinkhorn", "spread_output", "stream_mix"]
