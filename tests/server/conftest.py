"""A scripted engine with the real engine's interface, and servers around it on real sockets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from openai import OpenAI

from engine.config import EngineConfig
from engine.detokenizer import byte_alphabet
from engine.errors import CapacityError, RequestError
from engine.request import (
    EventCallback,
    FinishEvent,
    PromptEvent,
    SamplingParams,
    TokenLogprobs,
    TokensEvent,
)
from engine.tokenizer import REQUIRED_MARKERS, Tokenizer
from server.runner import Server
from server.state import ServerState, Timings

MODEL_NAME = "scripted"


def build_tokenizer() -> Tokenizer:
    """One token per byte, the markers, and a few longer words."""
    markers = [*REQUIRED_MARKERS, "<｜▁pad▁｜>"]
    words = ["Hello", "world", "tool"]
    alphabet = list(byte_alphabet())
    merges: list[str] = []
    merged: list[str] = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in merged:
                merged.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    tokens = markers + alphabet + merged
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "deepseek-v3",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * len(markers) + [1] * (len(tokens) - len(markers)),
            "tokenizer.ggml.merges": merges,
        }
    )


TOKENIZER = build_tokenizer()


def fake_logprobs(token: int, count: int) -> TokenLogprobs:
    """Made-up values that depend on the token only; the token itself is the most likely."""
    others = [(token + k) % TOKENIZER.vocab_size for k in range(1, count)]
    top = [(token, -0.125)] + [(other, -1.0 - i) for i, other in enumerate(others)]
    return TokenLogprobs(-0.125, tuple(top[:count]))


@dataclass
class Script:
    """What the engine generates for one request."""

    tokens: Sequence[int] = ()
    per_event: int = 1
    """Tokens that arrive together."""
    prefill_s: float = 0.0
    token_s: float = 0.0
    cached: int = 0
    failure: str = ""
    """Ends with an error event of this message instead of running to the end."""
    stop: bool = True
    """Whether the end-of-sentence token follows the tokens."""


@dataclass
class FakeRequest:
    request_id: int
    prompt_ids: list[int]
    params: SamplingParams
    on_event: EventCallback
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    reason: str = ""
    num_generated: int = 0

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class FakeStats:
    running: int
    waiting: int
    alive: bool
    error: str
    last_step_age_s: float | None
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0


class FakeEngine:
    """Plays scripts on threads; `on_request` chooses the script of each request."""

    model_name = MODEL_NAME
    tokenizer = TOKENIZER

    def __init__(
        self,
        config: EngineConfig | None = None,
        on_request: Callable[[Sequence[int], SamplingParams], Script] | None = None,
        max_model_len: int = 4096,
    ) -> None:
        self.config = config or EngineConfig()
        self.max_model_len = max_model_len
        self.on_request = on_request or (lambda prompt, params: self.say("Hello world"))
        self.requests: list[FakeRequest] = []
        self.dead = ""
        self.step_age_s: float | None = None
        self.closed = False
        self._lock = threading.Lock()
        self._waiting: deque[FakeRequest] = deque()
        self._running = 0

    @staticmethod
    def say(text: str, **options: Any) -> Script:
        return Script(TOKENIZER.encode_markup(text), **options)

    def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, on_event: EventCallback
    ) -> FakeRequest:
        if len(prompt_ids) > self.max_model_len:
            raise RequestError("too long", "prompt", "context_length_exceeded")
        with self._lock:
            full = self._running >= self.config.max_num_seqs
            if full and len(self._waiting) >= self.config.max_waiting:
                raise CapacityError("queue full")
            request = FakeRequest(len(self.requests), list(prompt_ids), params, on_event)
            self.requests.append(request)
            self._waiting.append(request)
        self._start_next()
        return request

    def stats(self) -> FakeStats:
        with self._lock:
            return FakeStats(
                self._running, len(self._waiting), not self.dead, self.dead, self.step_age_s
            )

    def close(self, timeout_s: float = 0) -> None:
        self.closed = True

    def _start_next(self) -> None:
        with self._lock:
            if self._running >= self.config.max_num_seqs or not self._waiting:
                return
            request = self._waiting.popleft()
            self._running += 1
        threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _run(self, request: FakeRequest) -> None:
        finish = self._play(request)
        request.reason = finish.reason
        with self._lock:
            self._running -= 1
        request.on_event(finish)
        request.finished.set()
        self._start_next()

    def _play(self, request: FakeRequest) -> FinishEvent:
        params = request.params
        script = self.on_request(request.prompt_ids, params)
        if request.cancelled.wait(script.prefill_s):
            return FinishEvent("abort")
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            scored = [fake_logprobs(t, params.prompt_logprobs) for t in request.prompt_ids[1:]]
            prompt_logprobs = (None, *scored)
        request.on_event(PromptEvent(len(request.prompt_ids), script.cached, prompt_logprobs))
        tokens = list(script.tokens) + ([TOKENIZER.eos_id] if script.stop else [])
        reason = "stop" if script.stop and len(tokens) <= params.max_tokens else "length"
        tokens = tokens[: params.max_tokens]
        for start in range(0, len(tokens), script.per_event):
            if request.cancelled.wait(script.token_s):
                return FinishEvent("abort")
            group = tuple(tokens[start : start + script.per_event])
            logprobs = None
            if params.logprobs is not None:
                logprobs = tuple(fake_logprobs(token, params.logprobs) for token in group)
            request.num_generated += len(group)
            request.on_event(TokensEvent(group, logprobs))
        if script.failure:
            return FinishEvent("error", script.failure)
        return FinishEvent(reason)  # type: ignore[arg-type]


class RunningServer:
    """A server on a thread of its own, listening on a free port of 127.0.0.1."""

    def __init__(
        self,
        engine: FakeEngine,
        timings: Timings,
        load: Callable[[Callable[[str, float], None]], Any] | None = None,
    ) -> None:
        self.engine = engine
        self.port = 0
        self.problem: BaseException | None = None
        self.state = ServerState(config=engine.config, file_name=MODEL_NAME, timings=timings)
        self._listening = threading.Event()
        self._ready = threading.Event()
        self._server = Server(
            self.state,
            load or (lambda progress: engine),
            on_listening=self._on_listening,
            on_ready=self._ready.set,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait_ready: bool = True) -> RunningServer:
        self._thread.start()
        assert self._listening.wait(10), "does not listen"
        if wait_ready:
            assert self._ready.wait(10), "not ready"
        return self

    def request_stop(self) -> None:
        self._server.request_stop()

    def join(self, timeout_s: float = 10.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "server did not stop"

    def client(self, **options: Any) -> OpenAI:
        options = {"api_key": "none", "max_retries": 0, "timeout": 20, **options}
        return OpenAI(base_url=f"{self.url}/v1", **options)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
        """Send a JSON (or raw bytes) body; return status, headers and parsed JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, raw, headers)
        return self._open(request)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], Any]:
        return self._open(urllib.request.Request(self.url + path, method=method))

    def events(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
        """Return the data of a stream's events; "[DONE]" as text, comments left out."""
        raw = json.dumps({"stream": True, **body}).encode()
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, raw), timeout=20
        ) as answer:
            lines = answer.read().decode().split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [text if text == "[DONE]" else json.loads(text) for text in data]

    def _open(self, request: urllib.request.Request) -> tuple[int, dict[str, str], Any]:
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, headers, text = answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as problem:
            with problem:
                status, headers, text = problem.code, dict(problem.headers), problem.read()
        return status, headers, json.loads(text) if text else None

    def _on_listening(self, port: int) -> None:
        self.port = port
        self._listening.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.run(handle_signals=False))
        except BaseException as problem:  # handed to the test
            self.problem = problem


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Poll until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "condition never held"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return TOKENIZER


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def script() -> type[Script]:
    return Script


@pytest.fixture
def make_server() -> Iterator[Callable[..., RunningServer]]:
    """Start servers; each is stopped at the end of the test and must stop."""
    servers: list[RunningServer] = []

    def make(
        on_request: Callable[[Sequence[int], SamplingParams], Script] | None = None,
        *,
        max_model_len: int = 4096,
        timings: Timings | None = None,
        load: Callable[[Callable[[str, float], None]], Any] | None = None,
        wait_ready: bool = True,
        **settings: Any,
    ) -> RunningServer:
        config = EngineConfig(port=0, **{"drain_timeout_s": 0.2, **settings})
        engine = FakeEngine(config, on_request, max_model_len)
        fast = timings or Timings(poll_s=0.05, fault_linger_s=0.3)
        server = RunningServer(engine, fast, load)
        servers.append(server)
        return server.start(wait_ready=wait_ready)

    yield make
    for server in servers:
        server.request_stop()
    for server in servers:
        server.join()


@pytest.fixture
def engine_class() -> type[FakeEngine]:
    return FakeEngine


@pytest.fixture
def fake_scores() -> Callable[[int, int], TokenLogprobs]:
    return fake_logprobs
