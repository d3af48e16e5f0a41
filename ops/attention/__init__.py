"""Attention with sinks."""

from ops.attention.reference import sink_attention

__all__ = ["sink_attention"]
