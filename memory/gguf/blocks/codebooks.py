"""Codebooks of the block types, taken from the `gguf` package and kept once per device.

A codebook is small (at most 2048 x 8 float32, 64 KiB) and never changes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from gguf import quants
from torch import Tensor

from memory.gguf.blocks.fields import bit_runs, signs


def _on(device: torch.device, values: Any) -> Tensor:
    # Kept for the life of the process, so it must not become an inference-mode tensor.
    with torch.inference_mode(False):
        return torch.tensor(np.asarray(values, dtype=np.float32), device=device)


@cache
def grid(quant_type: str, device: torch.device) -> Tensor:
    """Return the lattice points of an IQ1, IQ2 or IQ3 type: float32 [points, values].

    [2048, 8] for IQ1_S and IQ1_M, [256, 8] IQ2_XXS, [512, 8] IQ2_XS, [1024, 8] IQ2_S,
    [256, 4] IQ3_XXS, [512, 4] IQ3_S.
    """
    source: Any = getattr(quants, quant_type)
    source.init_grid()
    return _on(device, source.grid.reshape(source.grid_shape))


@cache
def seven_bit_signs(device: torch.device) -> Tensor:
    """Return the signs of 8 values for each 7-bit code: float32 [128, 8] of -1 and 1.

    The eighth sign makes the number of minus signs even.
    """
    codes = torch.frombuffer(bytearray(quants.IQ2_XXS.ksigns), dtype=torch.uint8)
    return _on(device, signs(bit_runs(codes[:, None], 1)).numpy())


@cache
def levels(quant_type: str, device: torch.device) -> Tensor:
    """Return the 16 values of a 4-bit code of IQ4_NL, MXFP4 or NVFP4: float32 [16]."""
    source: Any = getattr(quants, quant_type)
    return _on(device, source.kvalues)


def look_up(codebook: Tensor, codes: Tensor) -> Tensor:
    """Return codebook[codes]: [points] or [points, values], integer [...] -> [..., (values)]."""
    # Several times as fast as indexing on a CPU.
    found = codebook.index_select(0, codes.int().flatten())
    return found.view(*codes.shape, *codebook.shape[1:])
