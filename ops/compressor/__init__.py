"""Compression of token pairs."""

from ops.compressor.reference import pool_pair

__all__ = ["pool_pair"]
