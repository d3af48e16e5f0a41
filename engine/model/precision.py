"""Which float type each part of the model uses, chosen once from the settings and the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

BFLOAT16_CAPABILITY = (8, 0)
"""Least CUDA compute capability with bfloat16 arithmetic (CUDA C++ Programming Guide, arithmetic
instructions)."""


@dataclass(frozen=True)
class Precision:
    """Float types of one model instance.

    Norm statistics, mixers, router, softmaxes, compressor and logits are float32 in any case.
    """

    compute: torch.dtype
    """Weights, sub-layer inputs and cached keys."""
    residual: torch.dtype
    """Residual streams; never float16, whose range the streams outgrow with depth."""


@dataclass(frozen=True)
class CudaSupport:
    """What this process can use of CUDA."""

    built: bool
    """Whether this torch build has CUDA support."""
    device_index: int | None
    """Number of the current GPU, or None if none is visible."""


def find_cuda() -> CudaSupport:
    """Ask torch what CUDA devices this process can use."""
    index = torch.cuda.current_device() if torch.cuda.is_available() else None
    return CudaSupport(built=torch.version.cuda is not None, device_index=index)


def resolve_device(config: EngineConfig, cuda: CudaSupport | None = None) -> torch.device:
    """Return the device that the settings ask for.

    Args:
        config: settings.
        cuda: what CUDA offers; None asks torch.

    Raises:
        ConfigError: CUDA is asked for but no usable GPU is present; says what was found.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    cuda = cuda or find_cuda()
    if cuda.device_index is not None:
        return torch.device("cuda", cuda.device_index)
    if config.device == "cuda":
        found = "no CUDA GPU is visible" if cuda.built else "this torch build has no CUDA support"
        raise ConfigError(f"setting device: cuda was asked for, but {found}; use --device cpu")
    return torch.device("cpu")


def resolve_precision(
    config: EngineConfig, device: torch.device, capability: tuple[int, int] | None = None
) -> Precision:
    """Return the float types for `device`.

    Args:
        config: settings.
        device: where the model runs.
        capability: compute capability of a CUDA device; None asks torch.

    Raises:
        ConfigError: bfloat16 is asked for on a GPU that lacks it (compute capability below 8.0).
    """
    old_gpu = False
    if device.type == "cuda":
        capability = capability or torch.cuda.get_device_capability(device)
        old_gpu = capability < BFLOAT16_CAPABILITY
    name = config.dtype
    if name == "auto":
        name = "float32" if device.type == "cpu" else "float16" if old_gpu else "bfloat16"
    if name == "bfloat16" and old_gpu:
        raise ConfigError(
            "setting dtype: this GPU has no bfloat16 arithmetic; use float16 or float32"
        )
    compute = DTYPES[name]
    residual = config.residual_dtype
    if residual == "auto":
        residual = "bfloat16" if compute is torch.bfloat16 else "float32"
    return Precision(compute=compute, residual=DTYPES[residual])
