"""Storage types: which one a tensor gets, encoding, and random valid blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as QT

from engine.errors import ConfigError
from memory.gguf.blocks import SUPPORTED
from memory.gguf.maker.tensor import CLASSES, Tensor

Array = np.ndarray[Any, Any]

ALWAYS_F32 = {"norm", "sinks", "bias", "hyper_base", "hyper_scale", "engram_gate"}
DEFAULT_F32 = {"router", "hyper"}
EXPERT_PARTS = ("experts.gate", "experts.up", "experts.down")
STORABLE = tuple(name for name in SUPPORTED if name != "I8")
"""Names of the storage types that a weight can have."""


class TypePlan:
    """Chooses the storage type of a tensor from `CLASS=TYPE,...`; `a+b` alternates over layers.

    Raises:
        ConfigError: an unknown class or type.
    """

    def __init__(self, text: str, default: str) -> None:
        self.rules: dict[str, list[QT]] = {"all": [self.parse(default)]}
        for item in filter(None, (part.strip() for part in text.split(","))):
            key, _, names = item.partition("=")
            if key not in {"all", *CLASSES, *EXPERT_PARTS} or not names:
                raise ConfigError(
                    f"types: {item!r} is not CLASS=TYPE; classes: all, "
                    f"{', '.join([*CLASSES, *EXPERT_PARTS])}"
                )
            self.rules[key] = [self.parse(name) for name in names.split("+")]

    @staticmethod
    def parse(name: str) -> QT:
        """Return a storage type by its name, in any case."""
        if name.upper() not in STORABLE:
            known = ", ".join(STORABLE).lower()
            raise ConfigError(f"types: unknown storage type {name!r}; known: {known}")
        return QT[name.upper()]

    def choose(self, t: Tensor) -> QT:
        """Return the storage type of a tensor."""
        if t.category in ALWAYS_F32:
            return QT.F32
        family = t.category.partition(".")[0]
        for key in (t.category, family, *(() if family in DEFAULT_F32 else ("all",))):
            if key in self.rules:
                choice = self.rules[key]
                return choice[t.layer % len(choice)]
        return QT.F32


def row_bytes(t: Tensor, kind: QT) -> int:
    """Return the bytes of a row.

    Raises:
        ConfigError: the row length is not a multiple of the type's block.
    """
    block, size = GGML_QUANT_SIZES[kind]
    if t.shape[-1] % block:
        raise ConfigError(
            f"{t.name}: row length {t.shape[-1]} is not a multiple of {block}, the block of "
            f"{kind.name}; choose another type"
        )
    return t.shape[-1] // block * size


def encode(t: Tensor, value: Array, kind: QT) -> Array:
    """Float values to stored bytes, uint8 [..., row bytes]."""
    width = row_bytes(t, kind)
    try:
        stored = quants.quantize(value, kind)
    except NotImplementedError:
        raise ConfigError(
            f"{t.name}: there is no encoder for {kind.name}; choose another type"
        ) from None
    return np.ascontiguousarray(stored).view(np.uint8).reshape(*t.shape[:-1], width)


def decode(t: Tensor, stored: Array, kind: QT) -> Array:
    """Return stored bytes as F32 values in the tensor's shape."""
    return quants.dequantize(stored, kind).astype(np.float32, copy=False).reshape(t.shape)


# Position of the f16 scale, position of the f16 minimum (if any) and scale-to-minimum factor that
# centres the values, for block types whose other bits may all be random.
F16_SCALES: dict[QT, tuple[int, int | None, float]] = {
    QT.Q4_0: (0, None, 0),
    QT.Q4_1: (0, 2, -7.5),
    QT.Q5_0: (0, None, 0),
    QT.Q5_1: (0, 2, -15.5),
    QT.Q8_0: (0, None, 0),
    QT.Q2_K: (80, 82, 1.5),
    QT.Q3_K: (108, None, 0),
    QT.Q4_K: (0, 2, 7.5),
    QT.Q5_K: (0, 2, 15.5),
    QT.Q6_K: (208, None, 0),
    QT.IQ1_S: (0, None, 0),
    QT.IQ2_XXS: (0, None, 0),
    QT.IQ2_XS: (0, None, 0),
    QT.IQ2_S: (0, None, 0),
    QT.IQ3_XXS: (0, None, 0),
    QT.IQ3_S: (0, None, 0),
    QT.IQ4_NL: (0, None, 0),
    QT.IQ4_XS: (0, None, 0),
}


def put_scales(blocks: Array, kind: QT, scale: Array) -> None:
    """Overwrite the scale field of every block, in place; scale: positive F32 [blocks]."""
    half = scale.astype(np.float16)
    if kind is QT.IQ1_M:  # the f16's nibbles are the top of four little-endian u16 at byte 48
        bits = half.view(np.uint16)
        for i in range(4):
            high = blocks[:, 49 + 2 * i]
            high[:] = (high & 0x0F) | (((bits >> (4 * i)) & 0x0F) << 4).astype(np.uint8)
    elif kind is QT.MXFP4:  # E8M0
        blocks[:, 0] = np.clip(np.round(np.log2(scale)) + 127, 1, 253).astype(np.uint8)
    elif kind is QT.NVFP4:  # four unsigned E4M3 scales, one per 16 values
        blocks[:, :4] = quants.NVFP4.fp32_to_ue4m3(scale)[:, None]
    else:
        position, minimum, factor = F16_SCALES[kind]
        blocks[:, position : position + 2] = half[:, None].view(np.uint8)
        if minimum is not None:
            blocks[:, minimum : minimum + 2] = (
                (half.astype(np.float32) * factor).astype(np.float16)[:, None].view(np.uint8)
            )


def has_random_blocks(kind: QT) -> bool:
    """Whether `random_blocks` makes blocks of this type; others are encoded from floats."""
    return kind in F16_SCALES or kind in (QT.IQ1_M, QT.MXFP4, QT.NVFP4)


def random_blocks(t: Tensor, kind: QT, std: float, rng: np.random.Generator) -> Array:
    """Return random stored bytes whose decoded values have about the standard deviation `std`."""
    _, size = GGML_QUANT_SIZES[kind]
    width = row_bytes(t, kind)
    blocks = rng.integers(
        0, 256, size=(int(np.prod(t.shape[:-1])) * width // size, size), dtype=np.uint8
    )
    probe = blocks[:512].copy()
    put_scales(probe, kind, np.ones(len(probe), np.float32))
    unit = float(quants.dequantize(probe, kind).std())
    put_scales(blocks, kind, (std / unit * rng.uniform(0.7, 1.3, len(blocks))).astype(np.float32))
    return blocks.reshape(*t.shape[:-1], width)


def random_floats(t: Tensor, rng: np.random.Generator) -> Array:
    """Values in the ranges of a trained model: norms near 1, matrices near 1/sqrt(row length)."""
    noise = rng.standard_normal(t.shape, dtype=np.float32)
    if t.category == "norm":
        return 1 + 0.15 * noise
    if t.category == "engram_gate":
        return 1 + 0.3 * noise
    if t.category == "sinks":
        return 1 + noise
    if t.category == "bias":
        return 0.25 * noise
    if t.category == "hyper_scale":
        return 0.6 + 0.3 * np.abs(noise)
    if t.category == "hyper_base":
        return 0.7 * noise
    return noise * random_std(t)


def random_std(t: Tensor) -> float:
    """Return the standard deviation of a random tensor's values."""
    lookup = t.category in ("embedding", "engram") or t.name == "markov_w1.weight"
    return 1.0 if lookup else t.gain * t.shape[-1] ** -0.5
