"""Rounding of cached keys and values to FP8 and FP4 with block scales, in plain torch.

Three formats (source: the model's cache quantisation; all scales and codes match the golden vectors
bit for bit):

====================  =======  =======  ==========================================================
what                  value    group    scale
====================  =======  =======  ==========================================================
window key/value      E4M3     32       E8M0: 2^ceil(log2(max(amax, 1e-4) * f32(1/448)))
compressed latents    E2M1     16       E4M3: round(max(amax, 6 * 2^-9) / 6), saturating at 448
index keys, queries   E2M1     32       E8M0: 2^ceil(log2(max(amax, 6 * 2^-126) * f32(1/6)))
====================  =======  =======  ==========================================================

All arithmetic is float32 on bit patterns, so it runs the same on every device: no float8 type is
needed, which pre-Ampere cards lack. Legend: `...` any leading dimensions, C channels, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_GROUP = 32
LATENT_GROUP = 16
INDEX_GROUP = 32
_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
# Reciprocals as the reference holds them: rounded to float32 before the product.
_INV_E4M3_MAX = torch.tensor(1.0 / 448.0, dtype=torch.float32).item()
_INV_E2M1_MAX = torch.tensor(1.0 / 6.0, dtype=torch.float32).item()


def power_of_two(biased_exponent: Tensor) -> Tensor:
    """Return 2^(e - 127) as float32 [...] for int32 biased exponents [...], 1 to 254."""
    return (biased_exponent << 23).view(torch.float32)


def ceil_power_of_two_exponent(v: Tensor) -> Tensor:
    """Return the biased exponent (int32 [...], the E8M0 byte) of the least power of two >= v.

    `v` is float32, positive and normal: one is added to its exponent bits if its mantissa is not 0.
    """
    bits = v.view(torch.int32)
    return (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)


def round_e4m3(x: Tensor) -> Tensor:
    """Round float32 [...] to the nearest E4M3 value, ties to even, saturating at +-448."""
    a = x.abs().clamp(max=_E4M3_MAX)
    exponent = (a.view(torch.int32) >> 23).clamp(min=127 - 6)  # below 2^-6 the spacing is constant
    step = power_of_two(exponent - 3)
    return torch.copysign(torch.round(a / step) * step, x)


def round_e2m1(x: Tensor) -> Tensor:
    """Round float32 [...] to the nearest of 0, .5, 1, 1.5, 2, 3, 4, 6, ties to the even code."""
    a = x.abs().clamp(max=_E2M1_MAX)
    step = torch.where(a < 2.0, 0.5, torch.where(a < 4.0, 1.0, 2.0))
    return torch.copysign(torch.round(a / step) * step, x)


def encode_e4m3(value: Tensor) -> Tensor:
    """Return the E4M3 codes (uint8 [...]) of values that `round_e4m3` returned."""
    bits = value.abs().view(torch.int32)
    exponent = bits >> 23
    normal = ((exponent - 120) << 3) | ((bits >> 20) & 7)
    subnormal = (value.abs() * 512.0).to(torch.int32)
    code = torch.where(exponent >= 121, normal, subnormal)
    return (code | (torch.signbit(value).to(torch.int32) << 7)).to(torch.uint8)


def encode_e2m1(value: Tensor) -> Tensor:
    """Return the E2M1 codes (uint8 [...], low four bits) of values that `round_e2m1` returned."""
    a = value.abs()
    # 0, .5, 1, 1.5, 2 are twice their value; 3, 4, 6 follow as codes 5, 6, 7.
    code = torch.where(a <= 2.0, a * 2.0, torch.where(a <= 4.0, a + 2.0, a + 1.0)).to(torch.int32)
    return (code | (torch.signbit(value).to(torch.int32) << 3)).to(torch.uint8)


def _groups(x: Tensor, size: int) -> Tensor:
    return x.float().unflatten(-1, (-1, size))


def window_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise window keys/values.

    Args:
        x: [..., C], any float type, C a multiple of 32.

    Returns:
        values [..., G, 32] float32 (E4M3 numbers, not yet scaled) and E8M0 bytes [..., G] int32.
    """
    g = _groups(x, FP8_GROUP)
    amax = g.abs().amax(-1).clamp(min=1e-4)
    exponent = ceil_power_of_two_exponent(amax * _INV_E4M3_MAX)
    return round_e4m3(g / power_of_two(exponent).unsqueeze(-1)), exponent


def latent_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise compressed latents.

    Args:
        x: [..., C], any float type, C a multiple of 16.

    Returns:
        values [..., G, 16] float32 (E2M1 numbers) and scales [..., G] float32 (E4M3 numbers).
    """
    g = _groups(x, LATENT_GROUP)
    scale = round_e4m3(g.abs().amax(-1).clamp(min=_E2M1_MAX * 2.0**-9) / _E2M1_MAX)
    return round_e2m1(g / scale.unsqueeze(-1)), scale


def index_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise index keys or index queries.

    Args:
        x: [..., C], any float type, C a multiple of 32.

    Returns:
        values [..., G, 32] float32 (E2M1 numbers) and E8M0 bytes [..., G] int32.
    """
    g = _groups(x, INDEX_GROUP)
    amax = g.abs().amax(-1).clamp(min=_E2M1_MAX * 2.0**-126)
    exponent = ceil_power_of_two_exponent(amax * _INV_E2M1_MAX)
    return round_e2m1(g / power_of_two(exponent).unsqueeze(-1)), exponent


def fake_quant_window(x: Tensor) -> Tensor:
    """Return `x` [..., C] after an FP8 round trip, in its own type; exact in bfloat16 too."""
    values, exponent = window_quant(x)
    return (values * power_of_two(exponent).unsqueeze(-1)).flatten(-2).to(x.dtype)


def fake_quant_latent(x: Tensor) -> Tensor:
    """Return `x` [..., C] after the latents' FP4 round trip, in its own type."""
    values, scale = latent_quant(x)
    return (values * scale.unsqueeze(-1)).flatten(-2).to(x.dtype)


def fake_quant_index(x: Tensor) -> Tensor:
    """Return `x` [..., C] after the index keys' FP4 round trip, in its own type."""
    values, exponent = index_quant(x)
    return (values * power_of_two(exponent).unsqueeze(-1)).flatten(-2).to(x.dtype)
