from __future__ import annotations

import pytest

from engine.errors import ModelFileError
from memory.gguf.table import TABLE, TablePart, layers_with, table_parts
from memory.gguf.tensors import TensorInfo


def info(name: str, shape: tuple[int, ...], kind: str = "I8") -> TensorInfo:
    return TensorInfo(
        name=name,
        quant_type=kind,
        shape=shape,
        path="f.gguf",
        file_index=0,
        offset=0,
        num_bytes=shape[0] * shape[-1],
    )


def test_layers_in_numeric_order() -> None:
    names = ["blk.14.a.weight", "blk.2.a.weight", "blk.1.b.weight", "a.weight", "blk.x.a.weight"]
    tensors = {name: info(name, (1, 1)) for name in names}
    assert layers_with(tensors, "a.weight") == [2, 14]
    assert layers_with(tensors, "a.weight", "b.weight") == [1, 2, 14]


def test_decoded_width() -> None:
    rows = info("x", (7, 264))
    assert TablePart(rows=rows, scales=None, inline_scales=True, layer=1).row_dim == 256
    plain = TablePart(rows=rows, scales=None, inline_scales=False, layer=1)
    assert plain.row_dim == 264 and plain.num_rows == 7


def test_joined_table_wins() -> None:
    tensors = {n: info(n, (4, 32)) for n in (TABLE, "blk.1.engram_embd.weight")}
    parts = table_parts("f.gguf", "V", {}, tensors)
    assert [part.rows.name for part in parts] == [TABLE] and parts[0].layer is None


def test_parts_are_in_layer_order() -> None:
    names = ["blk.14.engram_embed.weight", "blk.2.engram_embed.weight"]
    tensors = {n: info(n, (4, 32), "MXFP4") for n in names}
    assert [p.layer for p in table_parts("f.gguf", "M", {}, tensors)] == [2, 14]
    assert table_parts("f.gguf", "U", {}, tensors) == ()


@pytest.mark.parametrize("encoding", [None, 7, "lloyd4_e5m3_32_r136", "x\ny"])
def test_unknown_row_encoding_is_refused(encoding: object) -> None:
    with pytest.raises(ModelFileError, match="ds4"):
        table_parts("f.gguf", "A", {"deepseek41.engram.encoding": encoding}, {})
