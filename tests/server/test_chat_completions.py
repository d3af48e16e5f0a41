"""POST /v1/chat/completions over real sockets, with the OpenAI client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError

Make = Callable[..., Any]

MESSAGES = [{"role": "user", "content": "q"}]
TOOLS = [
    {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "put", "parameters": {"type": "object"}}},
]
NO_THINKING = {"thinking": {"type": "disabled"}}


def invoke(name: str, **parameters: str) -> str:
    lines = [f'<｜DSML｜ invoke name="{name}">']
    for key, value in parameters.items():
        lines.append(f'<｜DSML｜ parameter name="{key}" string="true">{value}</｜DSML｜ parameter>')
    return "\n".join([*lines, "</｜DSML｜ invoke>"])


def calls(*invokes: str) -> str:
    return "\n\n<｜DSML｜ calls>\n" + "\n".join(invokes) + "\n</｜DSML｜ calls>"


def joined(chunks: list[Any]) -> dict[str, Any]:
    """Accumulate a stream's deltas of one choice as a client does."""
    whole: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            assert delta.get("reasoning", "") == delta.get("reasoning_content", "")
            whole["reasoning"] += delta.get("reasoning_content") or ""
            whole["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    assert call["type"] == "function"
                    assert call["function"]["arguments"] == ""
                    entry = {"id": call["id"], "name": call["function"]["name"], "arguments": ""}
                    assert call["index"] not in whole["calls"]
                    whole["calls"][call["index"]] = entry
                else:
                    assert "name" not in call["function"]
                    whole["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            whole["finish"] = choice["finish_reason"] or whole["finish"]
    return whole


def test_answer_with_reasoning(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("Hmm.</think>Hello world", cached=3))
    answer = server.client().chat.completions.create(model="any", messages=MESSAGES)  # type: ignore[arg-type]
    message: Any = answer.choices[0].message
    assert message.content == "Hello world"
    assert message.reasoning_content == message.reasoning == "Hmm."
    assert message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "scripted"
    usage: Any = answer.usage
    request = server.engine.requests[0]
    assert usage.prompt_tokens == len(request.prompt_ids)
    assert usage.completion_tokens == request.num_generated
    assert usage.completion_tokens_details.reasoning_tokens == 4
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert usage.prompt_cache_hit_tokens == 3
    assert usage.prompt_cache_miss_tokens == usage.prompt_tokens - 3


def test_without_thinking_nothing_mentions_reasoning(make_server: Make) -> None:
    server = make_server()
    for body in (
        NO_THINKING,
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"thinking": False}},
    ):
        status, _, answer = server.post("/v1/chat/completions", {"messages": MESSAGES, **body})
        assert status == 200
        message = answer["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Hello world"}
        assert "reasoning" not in json.dumps(server.events({"messages": MESSAGES, **body}))


@pytest.mark.parametrize("per_event", [1, 4, 1000])
def test_stream_order_and_sum(make_server: Make, engine_class: Any, per_event: int) -> None:
    output = "\nThink é.\n</think>\n\nAnswer 世界" + calls(
        invoke("get", a="x<y", b=""), invoke("put")
    )
    server = make_server(lambda p, s: engine_class.say(output, per_event=per_event))
    body = {"messages": MESSAGES, "tools": TOOLS}
    *chunks, done = server.events(body)
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "reasoning_content": ""}
    assert deltas[-1] == {}
    assert all(deltas[1:-1]), "empty delta inside the stream"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]
    kinds = [next(iter(delta)) for delta in deltas[1:-1]]
    order = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    assert order == ["reasoning_content", "content", "tool_calls"]

    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200
    whole, message = joined(chunks), answer["choices"][0]["message"]
    assert whole["reasoning"] == message["reasoning_content"] == "Think é."
    assert whole["content"] == message["content"] == "Answer 世界"
    streamed = [whole["calls"][i] for i in sorted(whole["calls"])]
    assert [call["name"] for call in streamed] == ["get", "put"]
    assert len({call["id"] for call in streamed}) == 2
    assert [call["arguments"] for call in streamed] == [
        call["function"]["arguments"] for call in message["tool_calls"]
    ]
    assert json.loads(streamed[0]["arguments"]) == {"a": "x<y", "b": ""}
    assert json.loads(streamed[1]["arguments"]) == {}


def test_only_calls_gives_null_content(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("</think>" + calls(invoke("get", k="v"))))
    client = server.client()
    answer = client.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)  # type: ignore[call-overload]
    assert answer.choices[0].message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"
    call = answer.choices[0].message.tool_calls[0]
    assert call.id.startswith("call_")
    assert (call.function.name, json.loads(call.function.arguments)) == ("get", {"k": "v"})


def test_openai_stream_helper(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("Why</think>Because" + calls(invoke("get"))))
    client = server.client()
    with client.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as stream:  # type: ignore[arg-type]
        for _ in stream:
            pass
        final: Any = stream.get_final_completion().choices[0].message
    assert final.content == "Because"
    assert final.reasoning_content == "Why"
    assert final.tool_calls[0].function.name == "get"


def test_usage_options(make_server: Make) -> None:
    server = make_server()
    body = {"messages": MESSAGES, **NO_THINKING}
    *chunks, last, _ = server.events({**body, "stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert all(chunk["choices"] for chunk in chunks)
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *chunks, _ = server.events({**body, **options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 4


def test_n_choices(make_server: Make, engine_class: Any) -> None:
    server = make_server(
        lambda p, s: engine_class.say(f"seed {s.seed}", token_s=0.001), max_num_seqs=2
    )
    body = {"messages": MESSAGES, "n": 4, "seed": 10, **NO_THINKING}
    status, _, answer = server.post("/v1/chat/completions", body)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert contents == [f"seed {10 + i}" for i in range(4)]
    assert answer["usage"]["prompt_tokens"] == len(server.engine.requests[0].prompt_ids)
    assert answer["usage"]["completion_tokens"] == 4 * 8
    *chunks, _ = server.events(body)
    for index in range(4):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert joined(own)["content"] == f"seed {10 + index}"
        assert joined(own)["finish"] == "stop"


def test_length(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("a" * 50))
    for name in ("max_tokens", "max_completion_tokens"):
        body = {"messages": MESSAGES, name: 7, **NO_THINKING}
        _, _, answer = server.post("/v1/chat/completions", body)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"] == "a" * 7
    body = {"messages": MESSAGES, "max_completion_tokens": 5, "max_tokens": 9}
    server.post("/v1/chat/completions", body)
    assert server.engine.requests[-1].params.max_tokens == 5


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, 65536),
        ({"reasoning_effort": "max"}, 131072),
        (NO_THINKING, 8192),
        ({"max_tokens": 999_999_999}, 199_000),
    ],
)
def test_default_limits(make_server: Make, extra: dict[str, Any], expected: int) -> None:
    server = make_server(max_model_len=200_000)
    assert server.post("/v1/chat/completions", {"messages": MESSAGES, **extra})[0] == 200
    limit = server.engine.requests[0].params.max_tokens
    prompt = len(server.engine.requests[0].prompt_ids)
    assert limit == (expected if expected < 199_000 else 200_000 - prompt)


def test_context_length_exceeded(make_server: Make) -> None:
    client = make_server(max_model_len=300).client()
    messages: Any = [{"role": "user", "content": "x" * 400}]
    for stream in (False, True):
        with pytest.raises(BadRequestError) as caught:
            client.chat.completions.create(model="m", messages=messages, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"
        assert "This model's maximum context length is 300 tokens." in caught.value.message


def test_stop_strings_act_on_the_answer_only(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("END is near</think>one END two"))
    body = {"messages": MESSAGES, "stop": ["END"]}
    _, _, answer = server.post("/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "END is near"
    assert message["content"] == "one "
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_cover_the_answer(make_server: Make, engine_class: Any, stream: bool) -> None:
    output = "Reason</think>\n\nHello wörld"
    server = make_server(lambda p, s: engine_class.say(output, per_event=2))
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    if stream:
        chunks = server.events(body)[:-1]
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        entries = [entry for part in parts if part for entry in part["content"]]
    else:
        _, _, answer = server.post("/v1/chat/completions", body)
        logprobs = answer["choices"][0]["logprobs"]
        assert logprobs["refusal"] is None
        entries = logprobs["content"]
    assert bytes(b for entry in entries for b in entry["bytes"]).decode() == "Hello wörld"
    for entry in entries:
        assert entry["logprob"] == -0.125
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["token"] == entry["token"]


def test_named_tool_without_thinking(make_server: Make, engine_class: Any) -> None:
    rest = invoke("put", k="v").split("\n", 1)[1] + "\n</｜DSML｜ calls>"
    server = make_server(lambda p, s: engine_class.say(rest))
    choice = {"type": "function", "function": {"name": "put"}}
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, **NO_THINKING}
    _, _, answer = server.post("/v1/chat/completions", body)
    call = answer["choices"][0]["message"]["tool_calls"][0]
    assert call["function"] == {"name": "put", "arguments": '{"k": "v"}'}
    prompt = server.engine.tokenizer.decode(server.engine.requests[0].prompt_ids)
    assert prompt.endswith('</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="put">\n')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("closes", [True, False])
def test_required_call_is_forced_after_thinking(
    make_server: Make, engine_class: Any, stream: bool, closes: bool, until: Make
) -> None:
    tokenizer = engine_class.tokenizer
    first = "I would rather talk" + ("</think>" + "Just text" * 50 if closes else "")
    second = invoke("get", k="v") + "\n</｜DSML｜ calls>"

    def on_request(prompt: Any, params: Any) -> Any:
        forced = tokenizer.decode(prompt[-20:]).endswith("<｜DSML｜ calls>\n")
        return engine_class.say(second if forced else first, token_s=0.001)

    server = make_server(on_request)
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
    if stream:
        whole = joined(server.events(body)[:-1])
        reasoning, content, finish = whole["reasoning"], whole["content"], whole["finish"]
        names = [call["name"] for call in whole["calls"].values()]
    else:
        _, _, answer = server.post("/v1/chat/completions", body)
        message = answer["choices"][0]["message"]
        reasoning, content = message["reasoning_content"], message["content"] or ""
        finish = answer["choices"][0]["finish_reason"]
        names = [call["function"]["name"] for call in message["tool_calls"]]
        prompt, later = server.engine.requests
        usage = answer["usage"]
        assert usage["prompt_tokens"] == len(prompt.prompt_ids)
        forced = len(later.prompt_ids) - len(prompt.prompt_ids)
        assert usage["completion_tokens"] >= forced + later.num_generated
    assert (reasoning, content, finish, names) == ("I would rather talk", "", "tool_calls", ["get"])
    original, continued = server.engine.requests
    until(original.finished.is_set)
    assert original.reason == ("abort" if closes else "stop")
    added = tokenizer.decode(continued.prompt_ids[len(original.prompt_ids) :])
    assert added == "I would rather talk</think>\n\n<｜DSML｜ calls>\n"
    used = len(continued.prompt_ids) - len(original.prompt_ids)
    assert continued.params.max_tokens == 400 - used


def test_single_call_if_parallel_is_off(make_server: Make, engine_class: Any, until: Make) -> None:
    output = "</think>" + calls(invoke("get"), invoke("put", k="v" * 500))
    server = make_server(lambda p, s: engine_class.say(output, token_s=0.002))
    body = {"messages": MESSAGES, "tools": TOOLS, "parallel_tool_calls": False}
    _, _, answer = server.post("/v1/chat/completions", body)
    names = [c["function"]["name"] for c in answer["choices"][0]["message"]["tool_calls"]]
    assert names == ["get"]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    until(server.engine.requests[0].finished.is_set)
    assert server.engine.requests[0].reason == "abort"


def test_tool_choice_none_leaks_nothing(make_server: Make) -> None:
    server = make_server()
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "none", **NO_THINKING}
    _, _, answer = server.post("/v1/chat/completions", body)
    assert "tool_calls" not in answer["choices"][0]["message"]
    assert "DSML" not in server.engine.tokenizer.decode(server.engine.requests[0].prompt_ids)


def test_json_fence_is_stripped_when_whole(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say('```json\n{"a": 1}\n```'))
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, **NO_THINKING}
    _, _, answer = server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"] == '{"a": 1}'
    assert joined(server.events(body)[:-1])["content"] == '```json\n{"a": 1}\n```'
    del body["response_format"]
    _, _, answer = server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["message"]["content"].startswith("```json")


@pytest.mark.parametrize("stream", [False, True])
def test_engine_failure(make_server: Make, engine_class: Any, stream: bool) -> None:
    server = make_server(lambda p, s: engine_class.say("part", failure="/secret", stop=False))
    client = server.client()
    if not stream:
        with pytest.raises(InternalServerError) as caught:
            client.chat.completions.create(model="m", messages=MESSAGES)  # type: ignore[arg-type]
        assert caught.value.response.headers["x-should-retry"] == "false"
        return
    *chunks, error, done = server.events({"messages": MESSAGES, **NO_THINKING})
    assert done == "[DONE]"
    assert joined(chunks)["content"] == "part"
    assert error["error"]["type"] == "server_error"
    assert "secret" not in json.dumps(error)


def test_concurrent_requests_do_not_mix(make_server: Make, engine_class: Any) -> None:
    tokenizer = engine_class.tokenizer

    def on_request(prompt: Any, params: Any) -> Any:
        secret = tokenizer.decode(prompt).rpartition("secret ")[2].partition("<")[0]
        return engine_class.say(f"{secret} again {secret}", token_s=0.001)

    server = make_server(on_request, max_num_seqs=4)

    async def ask(client: AsyncOpenAI, i: int) -> None:
        messages: Any = [{"role": "user", "content": f"secret {i * 7919}"}]
        expected = f"{i * 7919} again {i * 7919}"
        kwargs: Any = {"model": "m", "messages": messages, "extra_body": NO_THINKING}
        if i % 2:
            answer = await client.chat.completions.create(**kwargs)
            assert answer.choices[0].message.content == expected
        else:
            stream = await client.chat.completions.create(stream=True, **kwargs)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(parts) == expected

    async def ask_all() -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            await asyncio.gather(*(ask(client, i) for i in range(24)))

    asyncio.run(ask_all())
    assert len(server.engine.requests) == 24
