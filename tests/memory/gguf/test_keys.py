from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine.errors import ModelFileError
from memory.gguf.keys import KeyReader, MissingKeysError


def reader(**values: object) -> KeyReader:
    return KeyReader("f.gguf", {f"arch.{k}": v for k, v in values.items()}, "arch")


def test_all_missing_keys_are_in_one_error() -> None:
    keys = reader(there=3)
    with pytest.raises(MissingKeysError) as caught:
        keys.require(["one", "there", "tokenizer.ggml.model"])
    assert caught.value.keys == ("arch.one", "tokenizer.ggml.model")
    wanted = "f.gguf: arch.one: missing metadata 2 keys: arch.one, tokenizer.ggml.model"
    assert str(caught.value) == wanted
    keys.require(["there"])


@pytest.mark.parametrize(
    "read",
    [
        lambda keys: keys.integer("a", 0, 9),
        lambda keys: keys.real("a", 0, 9),
        lambda keys: keys.boolean("a"),
        lambda keys: keys.text("a"),
        lambda keys: keys.integers("a"),
        lambda keys: keys.reals("a", 2, 0, 9),
    ],
)
def test_a_missing_key_without_default(read: Callable[[KeyReader], object]) -> None:
    with pytest.raises(MissingKeysError, match=r"missing metadata key: arch\.a"):
        read(reader(b=1))


def test_defaults_are_not_missing() -> None:
    keys = reader()
    assert keys.integer("a", 0, 9, 7) == 7 and keys.real("b", 0, 9, 1.5) == 1.5
    assert keys.boolean("c", True) and keys.text("d", "x") == "x" and keys.integers("e", []) == []


def test_exact_wide_integers() -> None:
    wide = [2**63 + 1, 76632096046245]
    assert reader(a=np.array(wide, np.uint64)).integers("a") == wide
    assert reader(a=2**64 - 1).integer("a", 0, 2**64) == 2**64 - 1
    assert reader(a=np.array([5, 5])).integer("a", 0, 9) == 5


@pytest.mark.parametrize(
    "value",
    [True, 1.0, "1", np.array([1, 2]), np.array([], np.int32), np.array([1.5, 1.5]), [1], 10, -1],
)
def test_what_is_no_integer_from_0_to_9(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"f\.gguf: arch\.a: "):
        reader(a=value).integer("a", 0, 9)


@pytest.mark.parametrize("value", [True, "1", np.ones(2), float("nan"), float("inf"), 9.5, -0.1])
def test_what_is_no_number_from_0_to_9(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"f\.gguf: arch\.a: "):
        reader(a=value).real("a", 0.0, 9.0)


@pytest.mark.parametrize("value", [np.ones(1), ["x", "y"], np.array([0.5, np.nan]), "x", None])
def test_what_is_no_pair_of_numbers(value: object) -> None:
    with pytest.raises(ModelFileError, match=r"f\.gguf: arch\.a: "):
        reader(a=value if value is not None else np.array([True, True])).reals("a", 2, 0.0, 9.0)


def test_numbers_are_cut_and_spread() -> None:
    assert reader(a=np.array([1, 2, 3])).reals("a", 2, 0.0, 9.0) == (1.0, 2.0)
    assert reader(a=2).reals("a", 3, 0.0, 9.0) == (2.0, 2.0, 2.0)


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(ModelFileError) as caught:
        reader(a="long\n" * 1000).integer("a", 0, 9)
    assert len(str(caught.value)) < 200 and "\n" not in str(caught.value)
