from __future__ import annotations

import builtins
from typing import Any

import pytest

from server.commands import chat


def test_one_shot_writes_the_answer_only(ds41: Any, services: Any, engine_class: Any) -> None:
    services.on_request = lambda p, s: engine_class.say("Let me see.</think>\n\nHello [b]é[/b]")
    assert ds41("chat", "--message", "Hi") == (0, "Hello [b]é[/b]\n", "")
    assert services.engines[0].closed
    prompt = services.engines[0].tokenizer.decode(services.engines[0].requests[0].prompt_ids)
    assert prompt.endswith("<｜User｜>Hi<｜Assistant｜><think>")


def test_options(ds41: Any, services: Any) -> None:
    words = ["--no-thinking", "--system", "Be brief.", "--max-tokens", 2, "--temperature", 0]
    code, out, err = ds41("chat", "--message", "Hi", *words)
    assert (code, out) == (0, "Hello \n")
    assert "cut" in err
    request = services.engines[0].requests[0]
    prompt = services.engines[0].tokenizer.decode(request.prompt_ids)
    assert "<｜System｜>Be brief.<｜User｜>Hi<｜Assistant｜></think>" in prompt
    assert request.params.greedy
    for effort, number in (("max", 100), ("33", 33)):
        assert ds41("chat", "--message", "Hi", "--effort", effort)[0] == 0
        engine = services.engines[-1]
        assert f"Effort: {number} " in engine.tokenizer.decode(engine.requests[0].prompt_ids)
    assert ds41("chat", "--message", "Hi", "--effort", "bogus")[0] == 2


def test_conversation(
    ds41: Any, services: Any, engine_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["one", "two", "three"])
    services.on_request = lambda p, s: engine_class.say(next(answers))
    lines = iter(["first", "", "second", "/what", "/reset", "third", "/quit", "never"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(lines))
    code, out, _ = ds41("chat", "--no-thinking", "--system", "S")
    assert code == 0
    assert [line for line in out.splitlines() if line] == [
        "one",
        "two",
        "commands: /reset, /quit",
        "three",
    ]
    engine = services.engines[0]
    prompts = [engine.tokenizer.decode(request.prompt_ids) for request in engine.requests]
    assert "first<｜Assistant｜></think>one<｜end▁of▁sentence｜><｜User｜>second" in prompts[1]
    assert "first" not in prompts[2]
    assert "<｜System｜>S<｜User｜>third" in prompts[2]


def test_end_of_input_ends(ds41: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(builtins, "input", end)
    assert ds41("chat")[0] == 0


def test_interrupt_at_the_prompt(ds41: Any, services: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "input", interrupt)
    code, _, err = ds41("chat")
    assert code == 130
    assert "interrupted" in err
    assert services.engines[0].closed


def test_a_full_context_does_not_end_the_conversation(
    ds41: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["x" * 5000, "/reset", "hi", "/quit"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(lines))
    code, out, _ = ds41("chat", "--no-thinking")
    assert code == 0
    assert "maximum context length" in out
    assert "Hello world" in out


def test_interrupt_stops_one_answer(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Asked:
        def __init__(self) -> None:
            self.questions: list[str] = []

        def ask(self, question: str) -> None:
            self.questions.append(question)
            if len(self.questions) == 1:
                raise KeyboardInterrupt

    lines = iter(["one", "two", "/quit"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(lines))
    asked: Any = Asked()
    chat.talk(asked)
    assert asked.questions == ["one", "two"]
    assert "(stopped)" in capsys.readouterr().out
