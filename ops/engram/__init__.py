"""N-gram memory."""

from ops.engram.reference import add_memory, gate_streams, hash_rows

__all__ = ["add_memory", "gate_streams", "hash_rows"]
