"""The life of a server process: listen, load, serve, drain, stop.

It listens before the model is loaded, so that clients and supervisors get an answer from the first
moment. The model loads in a thread. The first stop signal drains, the second ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from engine.errors import ConfigError, InternalError
from server import errors
from server.app import build_app
from server.bridge import Generation
from server.state import ServerState

if TYPE_CHECKING:
    from engine.api import Engine

log = logging.getLogger(__name__)

Loader = Callable[[Callable[[str, float], None]], "Engine"]
"""Loads the engine; gets a callback for the stage's name and the share done, 0 to 1."""
HANDLER_GRACE_S = 2.0
"""Time that handlers get to send their last bytes."""
ENGINE_CLOSE_S = 10.0
"""Time that the engine gets to end its step and free the model."""
_DRAIN_POLL_S = 0.05


class Server:
    """One server; `run` it once.

    Args:
        state: shared with the handlers.
        load: makes the engine; runs in a thread.
        on_listening: called with the port once the server listens.
        on_ready: called once the model is loaded.
    """

    def __init__(
        self,
        state: ServerState,
        load: Loader,
        *,
        on_listening: Callable[[int], None] = lambda port: None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._load = load
        self._on_listening = on_listening
        self._on_ready = on_ready
        self._loader_thread: threading.Thread | None = None
        self._closer_thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a thread still loads or closes the model; neither can be interrupted.

        The process should then end without waiting for it.
        """
        threads = (self._loader_thread, self._closer_thread)
        return any(thread is not None and thread.is_alive() for thread in threads)

    def request_stop(self) -> None:
        """Begin to drain; may be called from any thread while `run` runs."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stop.set)

    async def run(self, *, handle_signals: bool = True) -> None:
        """Serve until a stop is requested.

        Raises:
            ConfigError: the address cannot be listened on.
            EngineError: loading failed; as the loader raised it.
            InternalError: the engine stopped by itself.
        """
        self._loop = asyncio.get_running_loop()
        runner = web.AppRunner(
            build_app(self._state),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=HANDLER_GRACE_S,
        )
        await runner.setup()
        try:
            self._on_listening(await self._listen(runner))
            if handle_signals:
                self._handle_signals()
            self._loader_thread = threading.Thread(
                target=self._load_engine, name="ds41-load", daemon=True
            )
            self._loader_thread.start()
            monitor = asyncio.create_task(self._watch_engine())
            await self._stop.wait()
            await self._drain()
            monitor.cancel()
        finally:
            await runner.cleanup()
            await self._close_engine()
        if self._failure is not None:
            raise self._failure

    async def _close_engine(self) -> None:
        """Free the model; an engine that hangs in a step must not keep the process alive."""
        engine = self._state.engine
        if engine is None:
            return
        self._closer_thread = threading.Thread(target=engine.close, name="ds41-close", daemon=True)
        self._closer_thread.start()
        await asyncio.to_thread(self._closer_thread.join, ENGINE_CLOSE_S)

    async def _listen(self, runner: web.AppRunner) -> int:
        config = self._state.config
        site = web.TCPSite(runner, config.host, config.port)
        try:
            await site.start()
        except (OSError, OverflowError) as problem:
            where = f"{config.host}:{config.port}"
            raise ConfigError(f"cannot listen on {where}: {problem}; set host or port") from None
        address: tuple[str, int] = runner.addresses[0]
        return address[1]

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)
        log.info("signal=%d draining=%d", number, len(self._state.generations))
        self._stop.set()

    def _load_engine(self) -> None:
        """Run on the loading thread."""
        assert self._loop is not None, "started by run"
        outcome: Callable[[], None]
        try:
            outcome = partial(self._take_engine, self._load(self._on_progress))
        except Exception as problem:
            outcome = partial(self._fail, problem)
        try:
            self._loop.call_soon_threadsafe(outcome)
        except RuntimeError:
            log.debug("the model was loaded after the server had stopped")

    def _on_progress(self, stage: str, done: float) -> None:
        self._state.stage, self._state.progress = stage, min(1.0, max(0.0, done))

    def _take_engine(self, engine: Engine) -> None:
        self._state.engine = engine
        if not self._stop.is_set():
            self._on_ready()

    def _fail(self, problem: Exception) -> None:
        """Note why the server must end, tell everyone who waits, and stop."""
        self._failure = problem
        self._state.fault = "the model could not be loaded"
        if isinstance(problem, InternalError):
            self._state.fault = "the engine has stopped"
        for generation in list(self._state.generations):
            generation.fail(errors.engine_dead())
        self._stop.set()

    async def _watch_engine(self) -> None:
        """Turn a dead engine into the end of the process, so that a supervisor restarts it."""
        while not self._stop.is_set():
            await asyncio.sleep(self._state.timings.poll_s)
            engine = self._state.engine
            if engine is None:
                continue
            stats = engine.stats()
            if not stats.alive:
                log.critical("engine stopped: %s", stats.error)
                self._fail(InternalError(f"the engine has stopped: {stats.error}"))

    async def _drain(self) -> None:
        """Refuse new requests, end waiting ones, give running ones their time."""
        state = self._state
        state.draining = True
        if state.fault:
            await asyncio.sleep(state.timings.fault_linger_s)
            return
        for generation in self._waiting_generations():
            generation.fail(errors.shutting_down())
        deadline_s = time.monotonic() + state.config.drain_timeout_s
        while state.generations and time.monotonic() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        for generation in list(state.generations):
            generation.fail(errors.shutting_down())

    def _waiting_generations(self) -> list[Generation]:
        """Return those that hold no slot yet: the engine starts requests in order of submission."""
        if self._state.engine is None:
            return []
        unstarted = [g for g in self._state.generations if not g.prompt_done]
        unstarted.sort(key=lambda generation: generation.request_id)
        count = min(len(unstarted), self._state.engine.stats().waiting)
        return unstarted[len(unstarted) - count :]


def url_host(host: str) -> str:
    """Return the host part of the URL under which a server bound to `host` is reached here."""
    if host in ("", "0.0.0.0", "::"):
        return "127.0.0.1"
    try:
        socket.inet_pton(socket.AF_INET6, host)
    except OSError:
        return host
    return f"[{host}]"
