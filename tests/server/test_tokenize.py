from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]


def test_prompt(make_server: Make, tokenizer: Any) -> None:
    server = make_server(max_model_len=77)
    text = "Hello ｜DSML｜ é"
    _, _, answer = server.post("/tokenize", {"prompt": text})
    assert answer["tokens"] == [tokenizer.bos_id, *tokenizer.encode_markup(text)]
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 77
    assert answer["token_strs"] is None
    body = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    _, _, answer = server.post("/tokenize", body)
    assert answer["tokens"] == tokenizer.encode_markup(text)
    assert answer["token_strs"] == [tokenizer.token_text(token) for token in answer["tokens"]]


def test_messages(make_server: Make, tokenizer: Any) -> None:
    server = make_server()
    chat = {"messages": [{"role": "user", "content": "<｜User｜>"}]}
    _, _, answer = server.post("/tokenize", chat)
    server.post("/v1/chat/completions", chat)
    assert answer["tokens"] == server.engine.requests[0].prompt_ids
    assert answer["tokens"].count(tokenizer.special_id("<｜User｜>")) == 1
    _, _, without = server.post("/tokenize", {**chat, "add_generation_prompt": False})
    assert without["count"] < answer["count"]


def test_content(make_server: Make, tokenizer: Any) -> None:
    server = make_server()
    text = "a<｜User｜>"
    assert server.post("/tokenize", {"content": text})[2] == {
        "tokens": tokenizer.encode_markup(text)
    }
    body = {"content": text, "add_special": True, "parse_special": False, "with_pieces": True}
    pieces = server.post("/tokenize", body)[2]["tokens"]
    assert [piece["id"] for piece in pieces] == [tokenizer.bos_id, *tokenizer.encode_text(text)]
    assert pieces[1]["piece"] == "a"


def test_detokenize_round_trip(make_server: Make, tokenizer: Any) -> None:
    server = make_server()
    rng = random.Random(5)
    alphabet = "aé世🌍 \n<|>｜"
    for _ in range(5):
        text = "".join(rng.choice(alphabet) for _ in range(50))
        ids = server.post("/tokenize", {"content": text})[2]["tokens"]
        assert server.post("/detokenize", {"tokens": ids})[2] == {"prompt": text, "content": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "x"}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
    ],
)
def test_errors(make_server: Make, path: str, body: dict[str, Any], param: str) -> None:
    status, _, answer = make_server().post(path, body)
    assert status == 400
    assert answer["error"]["param"] == param


def test_works_while_the_engine_is_busy(make_server: Make, engine_class: Any) -> None:
    server = make_server(lambda p, s: engine_class.say("x", prefill_s=5), max_num_seqs=1)
    from threading import Thread

    Thread(target=server.post, args=("/v1/completions", {"prompt": "a"}), daemon=True).start()
    assert server.post("/tokenize", {"prompt": "abc"})[2]["count"] == 4
