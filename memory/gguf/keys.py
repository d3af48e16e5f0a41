"""Typed access to metadata keys: collects the missing ones, refuses wrong types and values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from engine.errors import ModelFileError
from memory.gguf.format import quote


class MissingKeysError(ModelFileError):
    """Required metadata keys are missing.

    Attributes:
        keys: their full names.
    """

    def __init__(self, path: str, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        noun = "key" if len(keys) == 1 else f"{len(keys)} keys"
        super().__init__(path, keys[0], f"missing metadata {noun}: {', '.join(keys)}")


class KeyReader:
    """Reads keys of one file under a prefix.

    `require` first says which keys must be there, so that one message names all that are not. The
    readers raise ModelFileError for a missing key without default and for a wrong type or value.
    """

    def __init__(self, path: str, metadata: Mapping[str, object], prefix: str) -> None:
        self.path = path
        self.metadata = metadata
        self.prefix = prefix

    def name(self, key: str) -> str:
        """Return the full name of `key`; `tokenizer.` and `general.` keys have no prefix."""
        own = key.startswith(("tokenizer.", "general."))
        return key if own else f"{self.prefix}.{key}"

    def fail(self, key: str, problem: str) -> ModelFileError:
        """Return the error for a wrong value of `key`."""
        return ModelFileError(self.path, self.name(key), problem)

    def has(self, key: str) -> bool:
        """Return whether the key is there."""
        return self.name(key) in self.metadata

    def require(self, keys: Iterable[str]) -> None:
        """Check that all `keys` are there.

        Raises:
            MissingKeysError: names all that are not.
        """
        missing = [self.name(key) for key in keys if not self.has(key)]
        if missing:
            raise MissingKeysError(self.path, missing)

    def get(self, key: str, default: object = None) -> object:
        """Return the raw value, or the default if the key is missing.

        Raises:
            MissingKeysError: the key is missing and there is no default.
        """
        value = self.metadata.get(self.name(key), default)
        if value is None:
            raise MissingKeysError(self.path, [self.name(key)])
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer in [low, high]; of an array of equal numbers, that number."""
        value = self.get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"{describe(value)} is not an integer")
        if not low <= value <= high:
            raise self.fail(key, f"{value} is not between {low} and {high}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number in [low, high]."""
        value = self.get(key, default)
        return self.check_real(key, value, low, high)

    def check_real(self, key: str, value: object, low: float, high: float) -> float:
        """Return `value` as a float if it is a finite number in [low, high]."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(key, f"{describe(value)} is not a number")
        if not math.isfinite(value) or not low <= value <= high:
            raise self.fail(key, f"{value} is not a number between {low:g} and {high:g}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, f"{describe(value)} is not a boolean")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, f"{describe(value)} is not a string")
        return value

    def integers(self, key: str, default: list[int] | None = None) -> list[int]:
        """Return an array of integers of any width, exactly."""
        value = self.get(key, default)
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            return [int(v) for v in value.tolist()]
        if isinstance(value, list) and all(type(v) is int for v in value):
            return value
        raise self.fail(key, f"{describe(value)} is not an array of integers")

    def reals(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """Return `count` finite numbers in [low, high]; a single number stands for all.

        A longer array is cut: arrays may have entries for draft stages after the backbone's.
        """
        value = self.get(key)
        if not isinstance(value, np.ndarray):
            return (self.check_real(key, value, low, high),) * count
        if value.dtype.kind not in "fiu" or value.size < count:
            raise self.fail(key, f"{describe(value)} is not an array of at least {count} numbers")
        return tuple(self.check_real(key, v, low, high) for v in value[:count].tolist())


def describe(value: object) -> str:
    """Return what a value is, short enough for a message."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype.name} values"
    if isinstance(value, list):
        return f"an array of {len(value)} elements"
    return f"{type(value).__name__} {quote(str(value), 40)!r}"
