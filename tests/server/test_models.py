from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import NotFoundError

Make = Callable[..., Any]


def test_list_and_retrieve(make_server: Make) -> None:
    client = make_server(max_model_len=1234).client()
    models = client.models.list().data
    assert [model.id for model in models] == ["scripted"]
    model: Any = client.models.retrieve("scripted")
    assert model == models[0]
    assert (model.object, model.owned_by) == ("model", "ds41")
    assert isinstance(model.created, int)
    assert model.max_model_len == model.context_length == 1234
    assert model.default_reasoning_effort == "high"
    with pytest.raises(NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_names_and_aliases(make_server: Make) -> None:
    client = make_server(served_model_name="org/name, alias").client()
    assert [model.id for model in client.models.list().data] == ["org/name", "alias"]
    assert client.models.retrieve("org/name").id == "org/name"
    assert client.models.retrieve("alias").id == "alias"
