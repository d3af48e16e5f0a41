"""Fields of packed blocks, by byte position.

Shapes: N blocks, B bytes of a block, W bytes of a field, K fields of a byte. Bytes are uint8,
multi-byte fields are little endian. Slices are copied, so that blocks may start at any address.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _copied(blocks: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    part = blocks[:, start:stop].clone(memory_format=torch.contiguous_format)
    return part.view(dtype)


def f16(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 at byte `start` of each block: [N, B] -> float32 [N, 1]."""
    return _copied(blocks, start, start + 2, torch.float16).float()


def i8(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Return signed bytes [start, stop) of each block: [N, B] -> float32 [N, W]."""
    return _copied(blocks, start, stop, torch.int8).float()


def u16(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Return 16-bit words of bytes [start, stop): [N, B] -> int32 [N, W / 2], 0 ... 65535."""
    return _copied(blocks, start, stop, torch.int16).int() & 0xFFFF


def u32(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Return 32-bit words of bytes [start, stop): [N, B] -> int32 [N, W / 4].

    The top bit makes a word negative; mask after every right shift.
    """
    return _copied(blocks, start, stop, torch.int32)


def bit_planes(data: Tensor, width: int) -> Tensor:
    """Split bytes into fields of `width` bits, lowest first, one plane each.

    [..., W] -> uint8 [..., K, W] with K = 8 / width: the first plane holds the lowest bits of all
    bytes. This is the order of types that keep values i and i + W in one byte.
    """
    return torch.stack(_byte_fields(data, width), dim=-2)


def bit_runs(data: Tensor, width: int) -> Tensor:
    """Split bytes into fields of `width` bits, lowest first, byte after byte.

    [..., W] -> uint8 [..., W * K] with K = 8 / width.
    """
    return torch.stack(_byte_fields(data, width), dim=-1).flatten(-2)


def _byte_fields(data: Tensor, width: int) -> list[Tensor]:
    # Shifts by a number are several times as fast as shifts by a broadcast tensor on a CPU.
    mask = (1 << width) - 1
    return [data >> shift & mask for shift in range(0, 8, width)]


def word_fields(words: Tensor, width: int, count: int) -> Tensor:
    """Split words into `count` fields of `width` bits, lowest first: [...] -> [..., count]."""
    mask = (1 << width) - 1
    return torch.stack([words >> width * i & mask for i in range(count)], dim=-1)


def signs(bits: Tensor) -> Tensor:
    """Return -1.0 where a bit is set, else 1.0: any shape, float32."""
    return 1.0 - 2.0 * bits.float()
