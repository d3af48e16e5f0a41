import io
import json

import pytest
from rich.console import Console

from engine.errors import ModelFileError
from engine.inspect_model import inspect
from engine.pocket import model_path


def test_prints_tables_or_json():
    out = io.StringIO()
    inspect(model_path(), "", False, Console(file=out, width=100))
    assert "deepseek41" in out.getvalue() and "MXFP4" in out.getvalue()
    out = io.StringIO()
    inspect(model_path(), "", True, Console(file=out, width=40))
    described = json.loads(out.getvalue())
    assert described["architecture"] == "deepseek41"


def test_damaged_file(tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(model_path().read_bytes()[:5000])
    with pytest.raises(ModelFileError, match=r"cut\.gguf"):
        inspect(path, "", False, Console(file=io.StringIO()))
