"""Which float type each part of the model uses, chosen once from the settings and the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Precision:
    """Float types of one model instance.

    Norm statistics, mixers, router, softmaxes, compressor and logits are float32 in any case.
    """

    compute: torch.dtype
    """Weights, sub-layer inputs and cached keys."""
    residual: torch.dtype
    """Residual streams; never float16, whose range the streams outgrow with depth."""


def resolve_device(config: EngineConfig) -> torch.device:
    """Return the device that the settings ask for.

    Raises:
        ConfigError: CUDA is asked for but no usable GPU is present; says what was found.
    """
    available = torch.cuda.is_available()
    if config.device == "cuda" and not available:
        built = torch.version.cuda
        found = "no CUDA GPU is visible" if built else "this torch build has no CUDA support"
        raise ConfigError(f"setting device: cuda was asked for, but {found}; use --device cpu")
    if config.device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def resolve_precision(config: EngineConfig, device: torch.device) -> Precision:
    """Return the float types for `device`.

    Raises:
        ConfigError: bfloat16 is asked for on a GPU that lacks it (compute capability below 8.0).
    """
    name = config.dtype
    old_gpu = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
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
