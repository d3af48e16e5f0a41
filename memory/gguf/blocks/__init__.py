"""Decoders of the block types of GGUF, in plain torch operations for CPU and CUDA."""

from memory.gguf.blocks.decode import SUPPORTED, block_shape, dequantize

__all__ = ["SUPPORTED", "block_shape", "dequantize"]
