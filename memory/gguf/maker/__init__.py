"""Writes small models of the real architecture as GGUF files, random or from a checkpoint.

Everything is held in memory: this is for test models, not for the released checkpoint.
"""

from memory.gguf.maker.make import convert, make_random, make_tiny
from memory.gguf.maker.tiny_config import TINY_CONFIG, TINY_TYPES
from memory.gguf.maker.vocabulary import Vocabulary

__all__ = ["TINY_CONFIG", "TINY_TYPES", "Vocabulary", "convert", "make_random", "make_tiny"]
