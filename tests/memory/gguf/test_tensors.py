from __future__ import annotations

import pytest

from engine.errors import ModelFileError
from memory.gguf.tensors import Header, TensorInfo, check_ranges


def header(*spans: tuple[int, int], alignment: int = 32, size: int = 10_000) -> Header:
    return Header(
        path="f.gguf",
        file_size=size,
        version=3,
        alignment=alignment,
        data_offset=64,
        metadata={},
        tensors=tuple(
            TensorInfo(
                name=f"t{i}",
                quant_type="I8",
                shape=(count,),
                path="f.gguf",
                file_index=0,
                offset=offset,
                num_bytes=count,
            )
            for i, (offset, count) in enumerate(spans)
        ),
    )


def test_sound_ranges_in_any_order() -> None:
    check_ranges(header())
    check_ranges(header((128, 32), (64, 64), (160, 10_000 - 160)))
    check_ranges(header((64, 1), (65, 1), alignment=1, size=66))
    check_ranges(header((64, 33), (128, 9_000)))


@pytest.mark.parametrize(
    ("spans", "field", "words"),
    [
        (((64, 33), (96, 1)), "t1", "overlaps t0"),
        (((96, 1), (64, 33)), "t0", "overlaps t1"),
        (((64, 1), (64, 1)), "t1", "overlaps t0"),
        (((80, 1),), "t0", "alignment"),
        (((96, 9000),), "t0", "gap after the header"),
        (((64, 32), (128, 9000)), "t1", "gap after t0, which ends at 96"),
        (((64, 32), (96, 1000)), "t1", "8904 bytes follow this last tensor"),
        (((64, 9937),), "t0", "truncated"),
        (((1 << 62, 1),), "t0", "truncated"),
    ],
)
def test_unsound_ranges(spans: tuple[tuple[int, int], ...], field: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=words) as caught:
        check_ranges(header(*spans))
    assert caught.value.field == field


def test_row_bytes() -> None:
    rows = TensorInfo(
        name="t",
        quant_type="IQ2_XXS",
        shape=(3, 512),
        path="f",
        file_index=0,
        offset=0,
        num_bytes=396,
    )
    assert rows.row_bytes == 132
