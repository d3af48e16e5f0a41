from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelFileError


def test_text_goes_to_stdout(ds41: Any, services: Any, model: Path) -> None:
    assert ds41("generate", model, "--prompt", "Hi") == (0, "Hello world", "")
    (_, call), engine = services.calls[0], services.engines[0]
    assert call["path"] == model
    assert engine.closed
    assert engine.tokenizer.decode(engine.requests[0].prompt_ids[1:]) == "Hi"
    assert engine.requests[0].params.max_tokens == 256


def test_options_reach_the_engine(ds41: Any, services: Any, model: Path) -> None:
    options = ["--max-tokens", 9, "--temperature", 0.5, "--top-p", 0.75, "--top-k", 5]
    options += ["--min-p", 0.25, "--repetition-penalty", 1.5, "--seed", 42, "--ignore-eos"]
    options += ["--stop", "o w", "--device", "cpu", "--dtype", "float32", "--ctx", 512]
    options += ["--set", "kv_fake_quant=off"]
    code, out, _ = ds41("generate", model, "--prompt", "Hi", *options)
    assert (code, out) == (0, "Hell")
    params = services.engines[0].requests[0].params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 0.5, 0.75, 5)
    assert (params.min_p, params.repetition_penalty, params.seed) == (0.25, 1.5, 42)
    assert params.ignore_eos
    config = services.calls[0][1]["config"]
    assert (config.device, config.dtype, config.max_model_len) == ("cpu", "float32", 512)
    assert config.kv_fake_quant is False


def test_embedded_model_is_the_default(ds41: Any, services: Any, model: Path) -> None:
    assert ds41("generate", "--prompt", "Hi")[0] == 0
    assert services.calls[0][1]["path"] == model


def test_prompt_from_file_and_stdin(
    ds41: Any, services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "<｜User｜>é\n"
    path = tmp_path / "prompt.txt"
    path.write_text(text, "utf-8")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    for source in (path, "-"):
        assert ds41("generate", "--prompt-file", source)[0] == 0
        engine = services.engines[-1]
        assert engine.requests[0].prompt_ids[1:] == engine.tokenizer.encode_markup(text)
    path.write_bytes(b"\xff")
    code, _, err = ds41("generate", "--prompt-file", path)
    assert code == 2
    assert "not UTF-8" in err


def test_stats(ds41: Any) -> None:
    code, out, err = ds41("generate", "--prompt", "Hi", "--stats")
    assert (code, out) == (0, "Hello world")
    assert "prompt_tokens=3 completion_tokens=4" in err


def test_errors(ds41: Any, services: Any, tmp_path: Path) -> None:
    missing = tmp_path / "none.gguf"
    code, out, err = ds41("generate", missing, "--prompt", "a")
    assert (code, out) == (3, "")
    assert err == f"ds41: error: {missing}: found nothing, needed a GGUF file\n"
    assert ds41("generate", tmp_path, "--prompt", "a")[0] == 3
    code, _, err = ds41("generate", "--prompt", "a", "--temperature", 5)
    assert code == 2
    assert err.count("\n") == 1
    assert "temperature" in err
    assert services.engines[-1].closed
    services.problem = ModelFileError("x", "tensor", "is\nbad")
    assert ds41("generate", "--prompt", "a") == (3, "", "ds41: error: x: tensor: is bad\n")
    assert ds41("generate")[0] == 2
    assert ds41("generate", "--prompt", "a", "--prompt-file", "b")[0] == 2
