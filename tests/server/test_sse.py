"""Keep-alive comments on streams."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

Make = Callable[..., Any]


def raw_stream(server: Any, body: dict[str, Any]) -> str:
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", data)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def test_silence_is_filled_with_comments(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("ok", prefill_s=1.5), keepalive_s=0.2)
    body = {"messages": [{"role": "user", "content": "q"}]}
    text = raw_stream(server, body)
    assert 1 <= text.count(": keep-alive\n\n") < 25
    assert text.startswith("data: ")  # the role chunk comes before the wait
    assert text.endswith("data: [DONE]\n\n")
    for block in text.removesuffix("\n\n").split("\n\n"):
        assert block.startswith(("data: ", ": keep-alive"))
    stream = server.client().chat.completions.create(model="m", stream=True, **body)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ""
    assert server.engine.requests[-1].num_generated == 3


def test_no_comment_while_tokens_flow(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("x" * 25, token_s=0.15), keepalive_s=3.0)
    text = raw_stream(server, {"messages": [{"role": "user", "content": "q"}]})
    assert "keep-alive" not in text
    assert text.count("data: ") > 25
