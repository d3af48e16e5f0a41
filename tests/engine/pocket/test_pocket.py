"""The embedded model opens, fits its draft, and is what the training code's files describe."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors.numpy import save_file

from engine.pocket import draft_path, model_path
from engine.tokenizer import SYSTEM, Tokenizer
from memory.gguf import open_draft, open_model
from memory.gguf.blocks import dequantize
from memory.gguf.maker import Vocabulary, convert
from memory.gguf.maker.engram_constants import engram_arrays, engram_primes
from memory.gguf.maker.shape import Config
from memory.gguf.maker.tensor import Tensor
from memory.gguf.maker.tensor_table import draft_tensors, main_tensors

TRAINING = Path(__file__).parents[3] / "bench" / "pocket"
TYPES = "all=q8_0,experts=mxfp4,hyper=q8_0,router=f32"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(open_model(model_path()).metadata, str(model_path()))


def test_files_are_package_data() -> None:
    for path in (model_path(), draft_path()):
        with as_file(files("engine.pocket") / path.name) as installed:
            assert installed == path
        with path.open("rb") as file:
            assert file.read(4) == b"GGUF"
    assert model_path().stat().st_size + draft_path().stat().st_size < 12_000_000


def test_model_and_draft_fit(tokenizer: Tokenizer) -> None:
    model, draft = open_model(model_path()).config, open_draft(draft_path()).config
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (10, 256, 1536)
    assert (draft.num_layers, draft.block_size) == (2, 5)
    assert draft.hidden_size == model.hidden_size
    assert draft.vocab_size == model.vocab_size == tokenizer.vocab_size
    assert max(draft.target_layers) < model.num_layers
    assert draft.noise_token_id == tokenizer.markers[SYSTEM]
    assert model.engram is not None
    assert len(model.engram.token_map) == model.vocab_size


def test_vocabulary_is_the_one_of_the_training_code(tokenizer: Tokenizer) -> None:
    content = json.loads((TRAINING / "vocab.json").read_text("utf-8"))
    model = GGUFReader(model_path())
    assert model.fields["tokenizer.ggml.tokens"].contents() == content["tokens"]
    assert model.fields["tokenizer.ggml.merges"].contents() == content["merges"]
    text = "What is the capital of Japan? Übung 12345\n"
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


def values(path: Path, table: list[Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """Decoded tensors of a file in the shapes of `table`; both hold the same names."""
    found = {}
    for tensor in GGUFReader(path).tensors:
        raw = torch.from_numpy(np.array(tensor.data).view(np.uint8))
        found[tensor.name] = dequantize(raw, tensor.tensor_type.name).numpy()
    assert set(found) == {tensor.name for tensor in table}
    return {tensor.name: found[tensor.name].reshape(tensor.shape) for tensor in table}


def test_files_are_made_again_from_their_decoded_weights(tmp_path: Path) -> None:
    """Storing what the files decode to gives the same bytes, so nothing is lost on the way."""
    text = (TRAINING / "config.json").read_text("utf-8")
    cfg = Config.from_mapping(json.loads(text))
    rows = [sum(layer) for layer in engram_primes(cfg)]
    weights: dict[str, np.ndarray[Any, Any]] = {}
    for path, tensors in ((model_path(), main_tensors(cfg)), (draft_path(), draft_tensors(cfg))):
        table = list(tensors)
        found = values(path, table)
        for tensor in table:
            parts = tensor.scatter(found[tensor.name], rows)
            weights.update({name: np.ascontiguousarray(part) for name, part in parts.items()})
    fields = GGUFReader(model_path()).fields
    token_map = fields["deepseek41.engram.token_map"].contents()
    names = ("tokens", "token_type", "merges")
    vocabulary = Vocabulary(*(fields[f"tokenizer.ggml.{name}"].contents() for name in names))
    (tmp_path / "config.json").write_text(text)
    save_file(weights, tmp_path / "weights.safetensors")
    save_file(engram_arrays(cfg, token_map), tmp_path / "engram_tables.safetensors")
    out, draft = tmp_path / "pocket.gguf", tmp_path / "pocket-draft.gguf"
    convert(tmp_path, out, types=TYPES, draft=draft, vocabulary=vocabulary)
    assert out.read_bytes() == model_path().read_bytes()
    assert draft.read_bytes() == draft_path().read_bytes()
