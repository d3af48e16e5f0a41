"""POST /v1/completions over real sockets, with the OpenAI client."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from openai import BadRequestError

Make = Callable[..., Any]


def test_text_and_usage(make_server: Make) -> None:
    server = make_server()
    answer = server.client().completions.create(model="any", prompt="Hi", max_tokens=20)
    assert answer.object == "text_completion"
    assert answer.model == "scripted"
    assert answer.choices[0].text == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    request = server.engine.requests[0]
    assert request.prompt_ids[0] == server.engine.tokenizer.bos_id
    assert server.engine.tokenizer.decode(request.prompt_ids[1:]) == "Hi"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == request.num_generated == 4
    assert answer.usage.total_tokens == 7
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_default_limit_is_sixteen_tokens(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda prompt, params: engine_class.say("x" * 40))
    choice = server.client().completions.create(model="m", prompt="a").choices[0]
    assert choice.text == "x" * 16
    assert choice.finish_reason == "length"


def test_stream_equals_whole_answer(make_server: Make, engine_class: Any) -> None:
    text = "Grüße, 世界 🌍! </think><think> <｜User｜> end"
    server = make_server(lambda prompt, params: engine_class.say(text, per_event=3))
    client = server.client()
    whole = client.completions.create(model="m", prompt="a", max_tokens=200).choices[0]
    assert whole.text == text.replace("<｜User｜>", "")  # a turn marker never becomes text
    chunks = list(client.completions.create(model="m", prompt="a", max_tokens=200, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_usage_only_when_asked(make_server: Make) -> None:
    server = make_server()
    body = {"prompt": "a", "stream": True}
    plain = server.events(body, "/v1/completions")
    assert plain[-1] == "[DONE]"
    assert all(event["choices"] and "usage" not in event for event in plain[:-1])
    with_usage = server.events({**body, "stream_options": {"include_usage": True}}, "/completions")
    assert with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stop", ["wor", ["zzz", "wor"], [" world", "o w"]])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_and_cancel(
    make_server: Make, engine_class: Any, stop: Any, stream: bool, until: Make
) -> None:
    server = make_server(
        lambda prompt, params: engine_class.say("Hello world" + ", and more" * 90, token_s=0.02)
    )
    body = {"prompt": "a", "max_tokens": 900, "stop": stop, "logprobs": 1}
    if stream:
        events = server.events(body, "/v1/completions")[:-1]
        text = "".join(event["choices"][0]["text"] for event in events)
        logprobs = [event["choices"][0]["logprobs"] for event in events]
        tokens = [token for entry in logprobs if entry for token in entry["tokens"]]
        reason = events[-1]["choices"][0]["finish_reason"]
    else:
        _, _, answer = server.post("/v1/completions", body)
        choice = answer["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
        tokens = choice["logprobs"]["tokens"]
    expected = "Hell" if "o w" in stop else "Hello "
    if stop == [" world", "o w"]:
        assert text == "Hell"
    else:
        assert text == expected
    assert reason == "stop"
    assert "".join(tokens).startswith(text)
    assert "world" not in "".join(tokens)
    request = server.engine.requests[0]
    until(request.finished.is_set)
    assert request.reason == "abort"


def test_prompt_forms(make_server: Make, engine_class: Any) -> None:
    tokenizer = engine_class.tokenizer
    ids = tokenizer.encode_text("one")
    server = make_server(lambda prompt, params: engine_class.say(tokenizer.decode(prompt[-1:])))
    client = server.client()

    def texts(prompt: Any, **options: Any) -> list[str]:
        answer = client.completions.create(model="m", prompt=prompt, **options)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    assert texts("abc") == ["c"]
    assert texts(["ab", "cd", "ef"]) == ["b", "d", "f"]
    assert texts(ids) == ["e"]
    assert server.engine.requests[-1].prompt_ids == ids
    assert texts([ids, tokenizer.encode_text("sky")]) == ["e", "y"]
    assert texts(["ab", "cd"], n=2) == ["b", "b", "d", "d"]
    texts("")
    assert server.engine.requests[-1].prompt_ids == [tokenizer.bos_id]
    texts("<｜begin▁of▁sentence｜>x<｜User｜>")
    user = tokenizer.special_id("<｜User｜>")
    assert server.engine.requests[-1].prompt_ids == [
        tokenizer.bos_id,
        *tokenizer.encode_text("x"),
        user,
    ]


def test_many_prompts_wait_their_turn(make_server: Make, engine_class: Any) -> None:
    server = make_server(max_num_seqs=2, max_waiting=1)
    prompts = [f"prompt {i}" for i in range(12)]
    answer = server.client().completions.create(model="m", prompt=prompts)
    assert len(answer.choices) == 12
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(r.prompt_ids) for r in server.engine.requests)
    assert answer.usage.completion_tokens == 12 * 4


def test_prompt_counts_once_for_n(make_server: Make) -> None:
    server = make_server()
    answer = server.client().completions.create(model="m", prompt="abc", n=3, seed=7)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens == 12
    assert sorted(request.params.seed for request in server.engine.requests) == [7, 8, 9]


def test_logprobs(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda prompt, params: engine_class.say("Hello é"))
    answer = server.client().completions.create(model="m", prompt="a", logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", " ", "bytes:\\xc3", "bytes:\\xa9", "<｜end▁of▁sentence｜>"]
    assert logprobs.text_offset == [0, 5, 6, 6, 7]
    assert logprobs.token_logprobs == [-0.125] * 5
    assert logprobs.top_logprobs is not None
    for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True):
        assert len(top) == 3
        assert max(top, key=top.__getitem__) == token


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_scoring_with_echo(
    make_server: Make, engine_class: Any, max_tokens: int, as_ids: bool, stream: bool
) -> None:
    text = "Hello wörld tool"
    ids = engine_class.tokenizer.encode_text(text)
    server = make_server(lambda prompt, params: engine_class.say("x"))
    body = {
        "prompt": ids if as_ids else text,
        "max_tokens": max_tokens,
        "echo": True,
        "logprobs": 2,
    }
    if stream:
        events = server.events(body, "/v1/completions")[:-1]
        choices = [event["choices"][0] for event in events]
        full = "".join(choice["text"] for choice in choices)
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        logprobs = {key: list(chain(*(part[key] for part in parts))) for key in parts[0]}
        reason = choices[-1]["finish_reason"]
    else:
        status, _, answer = server.post("/v1/completions", body)
        assert status == 200
        choice = answer["choices"][0]
        full, logprobs, reason = choice["text"], choice["logprobs"], choice["finish_reason"]
        assert answer["usage"]["completion_tokens"] == max_tokens
    assert full == text + "x" * max_tokens
    assert reason == "length"
    assert len(logprobs["tokens"]) == len(ids) + max_tokens
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == [-0.125] * (len(ids) - 1 + max_tokens)
    assert all(max(top.values()) == -0.125 for top in logprobs["top_logprobs"][1:])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or full.startswith(token, offset)


def test_echo_without_logprobs(make_server: Make) -> None:
    choice = make_server().client().completions.create(model="m", prompt="Q:", echo=True).choices[0]
    assert choice.text == "Q:Hello world"
    assert choice.logprobs is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 6}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "echo": "yes"}, "echo"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "temperature": 3}, "temperature"),
    ],
)
def test_wrong_requests(make_server: Make, body: dict[str, Any], param: str) -> None:
    server = make_server()
    status, _, answer = server.post("/v1/completions", body)
    assert status == 400
    assert answer["error"]["param"] == param
    assert answer["error"]["type"] == "invalid_request_error"
    assert server.engine.requests == []


def test_context_length(make_server: Make) -> None:
    client = make_server(max_model_len=50).client()
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model="m", prompt="a" * 49 + "b", max_tokens=10)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    assert "maximum context length is 50 tokens" in caught.value.message
    assert "requested 61 tokens (51 in the prompt, 10 in the completion)" in caught.value.message
    answer = client.completions.create(model="m", prompt="a" * 48, max_tokens=10)
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text == "Hello"


def test_engine_failure(make_server: Make, engine_class: Any) -> None:
    server = make_server(
        lambda prompt, params: engine_class.say("partial", failure="secret /path/x", stop=False)
    )
    status, headers, answer = server.post("/v1/completions", {"prompt": "a"})
    assert status == 500
    assert answer["error"]["code"] == "internal_error"
    assert headers["x-should-retry"] == "false"
    assert "secret" not in str(answer)
    events = server.events({"prompt": "a"}, "/v1/completions")
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["type"] == "server_error"
    assert "".join(event["choices"][0]["text"] for event in events[:-2]) == "partial"
