"""Server-sent events to one client, with keep-alive comments by wall clock."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Self

from aiohttp import web

from server.errors import ErrorReply

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


class EventStream:
    """An open event stream; use it as an async context manager, which sends the headers.

    Only `data:` events and comments are sent: the OpenAI client raises on events without data and
    on comments after an `id:` line. The keep-alive timer is a task of its own, so that a stalled
    engine cannot stop it.

    Args:
        request: the request to answer.
        keepalive_s: silence after which a comment is sent, seconds.

    Raises:
        ConnectionError: from every method that writes, if the client is gone.
    """

    def __init__(self, request: web.Request, keepalive_s: float) -> None:
        self.response = web.StreamResponse(headers=HEADERS)
        self._request = request
        self._keepalive_s = keepalive_s
        self._last_write_s = time.monotonic()
        self._lock = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.response.prepare(self._request)
        self._last_write_s = time.monotonic()
        self._timer = asyncio.create_task(self._keep_alive())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def send(self, payload: dict[str, Any]) -> None:
        """Send one event with a JSON object."""
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
        await self._write(b"data: " + text.encode("utf-8", "replace") + b"\n\n")

    async def fail(self, reply: ErrorReply) -> None:
        """Send an error that came after the headers; `finish` must follow."""
        await self.send(reply.body())

    async def finish(self) -> web.StreamResponse:
        """Send the end marker, close the body and return the response."""
        await self._write(DONE)
        await self.response.write_eof()
        return self.response

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            await self.response.write(data)
            self._last_write_s = time.monotonic()

    async def _keep_alive(self) -> None:
        while True:
            silence_s = time.monotonic() - self._last_write_s
            if silence_s < self._keepalive_s:
                await asyncio.sleep(self._keepalive_s - silence_s)
                continue
            try:
                await self._write(KEEP_ALIVE)
            except ConnectionError:
                return  # the handler is being cancelled for the same reason
