from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config import (
    ENV_PREFIX,
    EngineConfig,
    find_setting,
    format_value,
    load_config,
    main,
    parse_text,
    read_assignments,
    read_environment,
    read_toml,
    reference_markdown,
)
from engine.errors import ConfigError

ROOT = Path(__file__).parents[2]
FIELDS = dataclasses.fields(EngineConfig)

SETTINGS = [
    *("kv_fake_quant", "dtype", "residual_dtype"),
    *("device", "engram_path", "cpu_threads"),
    *("max_model_len", "max_num_seqs", "max_waiting"),
    *("prefill_chunk_tokens", "prefill_tile_rows", "decode_buckets"),
    *("compiled_decode", "cuda_graphs"),
    *("host", "port", "served_model_name", "strict_model", "max_body_bytes"),
    *("keepalive_s", "drain_timeout_s"),
]


def test_list_of_settings_is_frozen() -> None:
    """A new setting is a decision: it is added here, with the tests of both its values."""
    assert [f.name for f in FIELDS] == SETTINGS


@pytest.mark.parametrize("f", FIELDS, ids=lambda f: f.name)
def test_every_setting_is_documented_and_survives_text(f: dataclasses.Field[Any]) -> None:
    doc = f.metadata["doc"]
    assert doc[0].isupper() and doc.endswith(".") and len(doc) > 15
    assert f.metadata["group"]
    assert parse_text(f, format_value(f.default)) == f.default
    suffixes = {"_bytes": "bytes", "_s": "seconds", "_tokens": "tokens", "_rows": "rows"}
    for suffix, unit in suffixes.items():
        if f.name.endswith(suffix):
            assert f.metadata["unit"] == unit


def test_settings_of_a_group_stand_together() -> None:
    groups = [f.metadata["group"] for f in FIELDS]
    changes = [g for g, before in zip(groups, ["", *groups], strict=False) if g != before]
    assert len(changes) == len(set(changes))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kv_fake_quant", "off", False),
        ("kv_fake_quant", " True ", True),
        ("kv_fake_quant", "1", True),
        ("max_num_seqs", "7", 7),
        ("keepalive_s", "0.5", 0.5),
        ("decode_buckets", "1,3, 9", (1, 3, 9)),
        ("host", "0.0.0.0", "0.0.0.0"),
    ],
)
def test_parse_text(name: str, text: str, value: object) -> None:
    parsed = parse_text(find_setting(name), text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("kv_fake_quant=maybe", ["kv_fake_quant", "'maybe'", "on or off"]),
        ("max_num_seqs=two", ["max_num_seqs", "'two'", "whole number"]),
        ("max_num_seqs=2.5", ["max_num_seqs", "'2.5'", "whole number"]),
        ("keepalive_s=soon", ["keepalive_s", "'soon'", "a number"]),
        ("decode_buckets=1,x", ["decode_buckets", "'1,x'", "whole numbers with commas"]),
        ("max_num_seq=2", ["max_num_seq", "did you mean max_num_seqs"]),
        ("qqqqqq=2", ["unknown setting 'qqqqqq'"]),
        ("max_num_seqs", ["max_num_seqs", "name=value"]),
    ],
)
def test_bad_assignment_names_setting_and_need(item: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_assignments([item])
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dtype": "int4"}, ["dtype", "'int4'", "bfloat16"]),
        ({"max_num_seqs": 0}, ["max_num_seqs", "0 is below the minimum 1"]),
        ({"keepalive_s": float("nan")}, ["keepalive_s", "nan"]),
        ({"max_num_seqs": True}, ["max_num_seqs", "not a number"]),
        ({"max_num_seqs": "4"}, ["max_num_seqs", "not a number"]),
        ({"decode_buckets": ()}, ["decode_buckets", "at least one"]),
        ({"decode_buckets": (4, 0)}, ["decode_buckets", "below the minimum"]),
    ],
)
def test_values_are_checked(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**values)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_later_sources_win(tmp_path: Path) -> None:
    toml = tmp_path / "ds41.toml"
    toml.write_text(
        'port = 1\nmax_waiting = 10\nkeepalive_s = 2\ndevice = "cpu"\ndecode_buckets = [2, 4]\n'
    )
    environ = {"DS41_PORT": "2", "DS41_MAX_WAITING": "20", "DS41_HOST": "a", "OTHER": "x"}
    overrides = {"port": 3, "host": None, "max-waiting": 30}
    config = load_config(
        toml_path=toml, environ=environ, overrides=overrides, assignments=["port=4"]
    )
    assert (config.port, config.max_waiting, config.host) == (4, 30, "a")
    assert config.keepalive_s == 2.0 and type(config.keepalive_s) is float
    assert config.device == "cpu" and config.decode_buckets == (2, 4)
    assert load_config(environ={}) == EngineConfig()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = ", ["ds41.toml"]),
        ("prot = 1", ["'prot'", "did you mean port"]),
        ("port = true", ["ds41.toml", "port", "expected int"]),
        ("port = 1.5", ["ds41.toml", "port", "expected int"]),
        ("kv_fake_quant = 1", ["kv_fake_quant", "expected bool"]),
        ("decode_buckets = [1, true]", ["decode_buckets", "expected tuple"]),
        ("host = 5", ["host", "expected str"]),
        ("[server]\nport = 1", ["'server'"]),
    ],
)
def test_bad_toml(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "ds41.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_unreadable_toml_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml"):
        read_toml(tmp_path / "missing.toml")
    binary = tmp_path / "model.gguf"
    binary.write_bytes(b"GGUF\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"model\.gguf"):
        read_toml(binary)


def test_unknown_variable_is_an_error() -> None:
    with pytest.raises(ConfigError, match="did you mean drain_timeout_s"):
        read_environment({ENV_PREFIX + "DRAIN_TIMEOUT": "3"})


def test_hyphens_count_as_underscores() -> None:
    assert read_assignments(["max-num-seqs=3"]) == {"max_num_seqs": 3}


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().port = 1  # type: ignore[misc]


def test_reference_page_names_every_setting_once() -> None:
    page = reference_markdown()
    for f in FIELDS:
        assert page.count(f"| `{f.name}` |") == 1
        assert f.metadata["doc"] in page


def test_main_prints_settings_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--markdown"]) == 0
    assert capsys.readouterr().out == reference_markdown()
    assert main(["--set", "port=81"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "port = 81" in lines and len(lines) == len(SETTINGS)


def test_main_reports_errors_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--set", "prot=81"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: unknown setting 'prot'")
    assert output.err.count("\n") == 1


def test_the_process_environment_is_read() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "engine.config"],
        cwd=ROOT,
        env={ENV_PREFIX + "PORT": "4321"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "port = 4321" in result.stdout.splitlines()
