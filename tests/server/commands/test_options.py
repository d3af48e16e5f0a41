from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ConfigError, ModelFileError
from server.commands.options import model_name, read_bytes, read_json_file, resolve_model


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("model.gguf", "model"),
        ("a/b/My-Model.Q4_K.gguf", "My-Model.Q4_K"),
        ("big-00001-of-00012.gguf", "big"),
        ("noending", "noending"),
    ],
)
def test_model_name(file: str, name: str) -> None:
    assert model_name(Path(file)) == name


def test_resolve_model(services: Any, model: Path, tmp_path: Path) -> None:
    assert resolve_model(None, services) == model
    assert resolve_model(model, services) == model
    for path, found in ((tmp_path, "a folder"), (tmp_path / "x", "nothing")):
        with pytest.raises(ModelFileError, match=f"found {found}"):
            resolve_model(path, services)


def test_reading(tmp_path: Path, json_file: Any) -> None:
    assert read_json_file(str(json_file({"a": [1]}))) == {"a": [1]}
    with pytest.raises(ConfigError, match="No such file"):
        read_bytes(str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="directory"):
        read_bytes(str(tmp_path))


def test_settings_come_from_file_and_options(
    ds41: Any, services: Any, model: Path, tmp_path: Path
) -> None:
    toml = tmp_path / "c.toml"
    toml.write_text('device = "cpu"\nmax_model_len = 100\nmax_num_seqs = 3\n')
    words = ["--config", toml, "--ctx", 200, "--set", "max_num_seqs=5"]
    assert ds41("generate", "--prompt", "a", *words)[0] == 0
    config = services.calls[0][1]["config"]
    assert (config.device, config.max_model_len, config.max_num_seqs) == ("cpu", 200, 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "nothing=1"], "unknown setting"),
        (["--set", "max_num_seq=1"], "did you mean max_num_seqs"),
        (["--set", "x"], "expected name=value"),
        (["--device", "tpu"], "setting device: 'tpu' is not one of"),
        (["--dtype", "int8"], "setting dtype"),
        (["--ctx", "-1"], "max_model_len"),
        (["--ctx", "x"], "argument --ctx"),
        (["--config", "none.toml"], "none.toml"),
    ],
)
def test_wrong_settings(ds41: Any, services: Any, words: list[str], message: str) -> None:
    code, out, err = ds41("generate", "--prompt", "a", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert services.calls == []
