"""Filling weights: right place and type, and every fault named."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as QT
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants
from torch import nn

from engine.errors import InternalError, ModelFileError
from engine.model.load import fill_weights
from engine.model.parameters import empty
from memory.gguf import open_model

CPU = torch.device("cpu")
NAMES = {"a.weight": "wide", "b.weight": "inner.narrow", "c.weight": "inner.folded"}


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow = empty(6)
        self.folded = empty(2, 3, 4, dtype=torch.bfloat16)
        self.register_buffer("table", torch.arange(3.0), persistent=False)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = empty(4, 6)
        self.inner = Inner()


class Source:
    """Tensors by name, as an opened file hands them out."""

    def __init__(self, **changes):
        g = torch.Generator().manual_seed(80)
        self.tensors = {
            "a.weight": torch.randn(4, 6, generator=g),
            "b.weight": torch.randn(6, generator=g),
            "c.weight": torch.randn(6, 4, generator=g),  # as many numbers, other extents
        }
        self.tensors |= {f"{key}.weight": value for key, value in changes.items()}

    def decode(self, name, dtype=torch.float32, device="cpu"):
        return self.tensors[name].to(device, dtype)


def test_values_land_in_their_place_and_type(device):
    module, source, heard = Small(), Source(), []
    fill_weights(
        module, source, NAMES, torch.device(device), "x.gguf", lambda *v: heard.append(v), "reading"
    )
    assert torch.equal(module.wide.cpu(), source.tensors["a.weight"])
    assert torch.equal(module.inner.narrow.cpu(), source.tensors["b.weight"])
    half = source.tensors["c.weight"].view(2, 3, 4).bfloat16()
    assert torch.equal(module.inner.folded.cpu(), half) and module.inner.folded.is_contiguous()
    assert not any(p.requires_grad for p in module.parameters())
    everything = [*module.parameters(), *module.buffers()]
    assert {t.device.type for t in everything} == {device} and len(everything) == 4
    assert module.inner.table.tolist() == [0, 1, 2]
    assert heard == [("reading", pytest.approx(i / 3)) for i in (1, 2, 3)]


@pytest.mark.parametrize("shape", [(7,), (5,), (2, 6), (0,)])
def test_wrong_element_count_names_the_tensor(shape):
    with pytest.raises(ModelFileError) as caught:
        fill_weights(Small(), Source(b=torch.zeros(shape)), NAMES, CPU, "x.gguf")
    assert (caught.value.path, caught.value.field) == ("x.gguf", "tensor b.weight")
    assert str(list(shape)) in str(caught.value) and "[6]" in str(caught.value)


@pytest.mark.parametrize("values", [["nan"], ["inf"], ["-inf"], ["inf", "-inf"]])
@pytest.mark.parametrize("key", ["a", "c"])
def test_nan_and_infinity_are_refused(key, values):
    source = Source()
    tensor = source.tensors[f"{key}.weight"]
    tensor[-1, : len(values)] = torch.tensor([float(v) for v in values])
    with pytest.raises(ModelFileError, match="NaN or infinity") as caught:
        fill_weights(Small(), source, NAMES, CPU, "x.gguf")
    assert caught.value.field == f"tensor {key}.weight"


def test_large_finite_values_are_no_infinity():
    """Their sum exceeds float32, the values do not."""
    large = torch.full((4, 6), 3e38)
    module = Small()
    fill_weights(module, Source(a=large), NAMES, CPU, "x.gguf")
    assert torch.equal(module.wide, large)


@pytest.mark.parametrize("left", list(NAMES))
def test_a_weight_without_a_name_is_an_internal_error(left):
    names = {name: path for name, path in NAMES.items() if name != left}
    with pytest.raises(InternalError, match=NAMES[left].replace(".", r"\.")):
        fill_weights(Small(), Source(), names, CPU, "x.gguf")


def in_every_type(value):
    """Round to 8 significant bits and to exponents that F16 has: exact in F32, F16 and BF16."""
    mantissa, exponent = np.frexp(value)
    rounded = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    return np.where(np.abs(rounded) < 2.0**-13, 0.0, rounded).astype(np.float32)


def rewrite(source, target, kinds):
    """Write a float32 file again, rounded, its tensors in the storage types `kinds` in turn."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        is_array = field.types[0] is GGUFValueType.ARRAY
        inner = field.types[-1] if is_array else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    for number, tensor in enumerate(reader.tensors):
        assert tensor.tensor_type is QT.F32
        kind = kinds[number % len(kinds)]
        stored = quants.quantize(in_every_type(np.array(tensor.data)), kind)
        writer.add_tensor(tensor.name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_storage_type_of_no_tensor_changes_the_logits(golden_models, golden_gguf, tmp_path):
    """Every tensor, small ones too, is once F32, F16 and BF16; its values are exact in all."""
    model, tokens = golden_models(True), torch.arange(7, 320, 13).tolist()
    draft, kinds = golden_gguf.with_name("golden-draft.gguf"), [QT.F32, QT.F16, QT.BF16]
    results, seen = [], {}
    for turn in range(3):
        path = tmp_path / f"turn{turn}.gguf"
        rewrite(golden_gguf, path, kinds[turn:] + kinds[:turn])
        with open_model(path) as file:
            for name, info in file.tensors.items():
                seen.setdefault(name, []).append(info.quant_type)
        other = type(model).build(path, draft, str(model.device))
        results.append(other.step(tokens, 0, len(tokens), True))
        other.file.close()
        other.draft_file.close()
    assert len(seen) > 200
    for name, types in seen.items():
        assert sorted(types) == ["BF16", "F16", "F32"], name
    assert torch.isfinite(results[0]).all()
    for result in results[1:]:
        assert torch.equal(result, results[0])
    assert (model.step(tokens, 0, len(tokens), True) - results[0]).abs().mean() < 0.3
