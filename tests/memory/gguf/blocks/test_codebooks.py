"""Codebooks have their known shapes and values."""

from __future__ import annotations

import pytest
import torch

from memory.gguf.blocks.codebooks import grid, levels, look_up, seven_bit_signs

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("quant_type", "shape", "values"),
    [
        ("IQ1_S", (2048, 8), {-1, 0, 1}),
        ("IQ1_M", (2048, 8), {-1, 0, 1}),
        ("IQ2_XXS", (256, 8), {8, 25, 43}),
        ("IQ2_XS", (512, 8), {8, 25, 43}),
        ("IQ2_S", (1024, 8), {8, 25, 43}),
        ("IQ3_XXS", (256, 4), {4, 12, 20, 28, 36, 44, 52, 62}),
        ("IQ3_S", (512, 4), {1, 3, 5, 7, 9, 11, 13, 15}),
    ],
)
def test_grids(quant_type: str, shape: tuple[int, int], values: set[int]) -> None:
    points = grid(quant_type, CPU)
    assert points.shape == shape
    assert points.dtype == torch.float32
    assert set(points.unique().tolist()) == values
    assert len(points.unique(dim=0)) == shape[0]


def test_seven_bits_choose_seven_signs_and_the_eighth_makes_minus_even() -> None:
    table = seven_bit_signs(CPU)
    for code in range(128):
        minus = [bool(code >> bit & 1) for bit in range(7)]
        minus.append(sum(minus) % 2 == 1)
        assert table[code].tolist() == [-1.0 if m else 1.0 for m in minus]


def test_levels() -> None:
    assert len(levels("IQ4_NL", CPU).unique()) == 16
    for quant_type in ("MXFP4", "NVFP4"):
        doubled = levels(quant_type, CPU)
        assert (doubled[:8] / 2).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        assert torch.equal(doubled[8:], -doubled[:8])


def test_look_up_keeps_the_shape_of_the_codes(device: str) -> None:
    codes = torch.randint(0, 16, (3, 5, 7), generator=torch.Generator().manual_seed(1)).to(device)
    table = torch.arange(32.0, device=device).view(16, 2)
    assert torch.equal(look_up(table, codes.to(torch.uint8)), table[codes])
    assert torch.equal(look_up(table[:, 0], codes.int()), table[:, 0][codes])


def test_a_codebook_first_used_in_inference_mode_serves_autograd() -> None:
    grid.cache_clear()
    with torch.inference_mode():
        grid("IQ3_S", CPU)
    weight = torch.ones(4, requires_grad=True)
    (grid("IQ3_S", CPU) * weight).sum().backward()
    assert weight.grad is not None
    assert torch.equal(weight.grad, grid("IQ3_S", CPU).sum(0))
