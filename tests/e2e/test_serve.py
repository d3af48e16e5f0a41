"""`ds41 serve` as a process with the embedded model, used through the OpenAI client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import openai
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


class Served:
    """A running server process and what it printed."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "server.cli", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._wait_for_url()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for line in self.lines:
                found = re.search(r"listening on (http://\S+)", line)
                if found:
                    return found[1]
            assert self.process.poll() is None, self.lines
            time.sleep(0.05)
        raise AssertionError(f"no address after 120 s: {self.lines}")

    def close(self) -> None:
        """End the process if it still runs, and release its pipe."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=30)
        self._reader.join(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served("--set", "max_model_len=1024", "--device", "cpu")
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[openai.OpenAI]:
    made = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=20)
    with made:
        yield made


def chat(client, content, **arguments):
    return client.chat.completions.create(
        model="pocket",
        messages=[{"role": "user", "content": content}],
        **{"temperature": 0, "reasoning_effort": "none", **arguments},
    )


def test_models(client):
    models = client.models.list().data
    assert [m.id for m in models] == ["pocket"]
    assert client.models.retrieve("pocket").max_model_len == 1024


def test_chat_whole_and_streamed_are_equal(client):
    whole = chat(client, "What is the capital of Japan?")
    message = whole.choices[0].message
    assert message.content == "The capital of Japan is Tokyo."
    assert whole.choices[0].finish_reason == "stop"
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 10
    stream = chat(
        client, "What is the capital of Japan?", stream=True, stream_options={"include_usage": True}
    )
    text, finish, stream_usage = "", None, None
    for chunk in stream:
        stream_usage = chunk.usage or stream_usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    assert (text, finish) == (message.content, "stop")
    assert stream_usage.completion_tokens == usage.completion_tokens


def test_thinking_then_a_tool_call(client):
    answer = chat(
        client, "What is the weather in Oslo?", tools=[WEATHER], reasoning_effort="high"
    ).choices[0]
    assert answer.finish_reason == "tool_calls"
    call = answer.message.tool_calls[0].function
    assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Oslo"}
    assert answer.message.reasoning_content and "<" not in answer.message.reasoning_content
    assert answer.message.reasoning == answer.message.reasoning_content


def test_several_turns(client):
    messages = [{"role": "user", "content": "My name is Clara."}]
    first = client.chat.completions.create(
        model="pocket", messages=messages, temperature=0, reasoning_effort="none"
    )
    messages.append({"role": "assistant", "content": first.choices[0].message.content})
    messages.append({"role": "user", "content": "What is my name?"})
    second = client.chat.completions.create(
        model="pocket", messages=messages, temperature=0, reasoning_effort="none"
    )
    assert "Clara" in second.choices[0].message.content


def test_completion_echo_scores_text(client):
    text = "<｜User｜>What is the capital of Japan?<｜Assistant｜></think>The capital of Japan"
    scored = client.completions.create(
        model="pocket", prompt=text, max_tokens=0, echo=True, logprobs=2
    ).choices[0]
    scores = scored.logprobs
    assert scored.text == text == "".join(scores.tokens)
    assert scores.token_logprobs[0] is None and all(p <= 0 for p in scores.token_logprobs[1:])
    assert scores.token_logprobs[-1] > -0.1, "the trained answer is likely"
    more = client.completions.create(model="pocket", prompt=text, max_tokens=3, temperature=0)
    assert more.choices[0].text.startswith(" is") and more.choices[0].finish_reason == "length"


def test_errors(client):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(client, "hi", temperature=9)
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "word " * 3000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(openai.BadRequestError, match="image_url"):
        chat(client, [{"type": "image_url", "image_url": {"url": "data:,"}}])


def test_concurrent_clients_get_their_own_answers(client):
    codes = ["QX7-48KD", "MB2-91TR", "ZK5-30LW", "HF8-77PA", "CV1-62NE", "WL4-15GS"]
    solo = [chat(client, f"Repeat exactly: {c}").choices[0].message.content for c in codes]
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        reply = chat(client, f"Repeat exactly: {codes[number]}")
        answers[number] = reply.choices[0].message.content

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(codes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert [answers[i] for i in range(len(codes))] == solo


def test_a_client_that_goes_away_does_not_hurt(client):
    stream = chat(client, "Tell me a story.", stream=True, max_tokens=800)
    next(iter(stream))
    stream.close()
    assert chat(client, "What is the capital of Japan?").choices[0].message.content


def test_sigterm_ends_with_zero_and_no_traceback(served, client):
    assert served.stop() == 0
    assert not any("Traceback" in line for line in served.lines), served.lines


def test_damaged_model_file_ends_with_one_line(tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(b"GGUF" + os.urandom(64))
    done = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", str(path), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    assert done.returncode == 3 and len(errors) == 1 and "cut.gguf" in errors[0], done.stderr
