from __future__ import annotations

import pytest

from engine import errors
from engine.errors import ConfigError, EngineError, ModelFileError, RequestError

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, EngineError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_exit_codes_are_small_and_not_success(kind: type[EngineError]) -> None:
    assert 1 <= kind.exit_code <= 63


def test_users_faults_share_a_code_and_others_differ() -> None:
    codes = {kind.__name__: kind.exit_code for kind in CLASSES}
    assert codes.pop("RequestError") == codes["ConfigError"] == 2
    assert codes.pop("InternalError") == codes["EngineError"] == 1
    assert len(set(codes.values())) == len(codes)


def test_config_error_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        raise ConfigError("x")


def test_model_file_error_names_file_and_field() -> None:
    error = ModelFileError("a.gguf", "tensor_count", "found 7, needed 8")
    assert str(error) == "a.gguf: tensor_count: found 7, needed 8"
    assert (error.path, error.field) == ("a.gguf", "tensor_count")
    assert str(ModelFileError("a.gguf", "", "no such file")) == "a.gguf: no such file"


def test_request_error_carries_what_the_answer_needs() -> None:
    error = RequestError("too long", "messages", "context_length_exceeded", 413)
    assert (str(error), error.param, error.code, error.status) == (
        "too long",
        "messages",
        "context_length_exceeded",
        413,
    )
    plain = RequestError("wrong")
    assert (plain.param, plain.code, plain.status) == (None, None, 400)
