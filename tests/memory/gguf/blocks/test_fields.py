"""Bit fields equal those taken with Python integers."""

from __future__ import annotations

import struct

import pytest
import torch

from memory.gguf.blocks.fields import bit_planes, bit_runs, f16, i8, signs, u16, u32, word_fields


def random_bytes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def test_numbers_at_byte_positions() -> None:
    blocks = random_bytes(9, 18)
    blocks[:, 7] &= 0x3B  # the float16 is finite
    for row, block in enumerate(blocks):
        data = bytes(block.tolist())
        assert f16(blocks, 6)[row, 0] == struct.unpack_from("<e", data, 6)[0]
        assert i8(blocks, 3, 6)[row].tolist() == list(struct.unpack_from("<3b", data, 3))
        assert u16(blocks, 2, 6)[row].tolist() == list(struct.unpack_from("<2H", data, 2))
        words = struct.unpack_from("<2I", data, 10)
        assert [w & 0xFFFFFFFF for w in u32(blocks, 10, 18)[row].tolist()] == list(words)


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_any_address_is_read(offset: int) -> None:
    memory = random_bytes(4 + 66)
    block = memory[offset : offset + 66].view(1, 66)
    expected = struct.unpack("<16I", bytes(block[0, 2:].tolist()))
    assert [w & 0xFFFFFFFF for w in u32(block, 2, 66)[0].tolist()] == list(expected)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_fields_of_bytes(width: int) -> None:
    data = random_bytes(5, 6)
    count, mask = 8 // width, (1 << width) - 1
    planes, runs = bit_planes(data, width), bit_runs(data, width)
    assert planes.shape == (5, count, 6)
    assert runs.shape == (5, count * 6)
    for row, values in enumerate(data.tolist()):
        for column, byte in enumerate(values):
            fields = [byte >> (width * k) & mask for k in range(count)]
            assert planes[row, :, column].tolist() == fields
            assert runs[row, count * column : count * (column + 1)].tolist() == fields


def test_fields_of_words_with_the_top_bit_set() -> None:
    words = torch.tensor([-1, -(2**31), 0x12345678], dtype=torch.int32)
    expected = [[(w >> (7 * k)) & 127 for k in range(4)] for w in (2**32 - 1, 2**31, 0x12345678)]
    assert word_fields(words, 7, 4).tolist() == expected


def test_signs() -> None:
    assert signs(torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)).tolist() == [[1, -1], [-1, 1]]
