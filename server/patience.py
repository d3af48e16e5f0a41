"""An answer that is not streamed but may take minutes: empty lines keep the client waiting.

JSON may start with newlines, and every byte resets the read timeout of clients and proxies. Once
the first newline is out, the status is 200 for good: a later failure can only close the
connection, which clients report as a connection error.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

from aiohttp import web

from server.state import ServerState

CONTENT_TYPE = "application/json; charset=utf-8"


class PatientReply:
    """A JSON answer with leading newlines if it takes long; use as an async context manager."""

    def __init__(self, request: web.Request, state: ServerState) -> None:
        self._request = request
        self._first_s = state.timings.first_newline_s
        self._next_s = state.config.keepalive_s
        self._response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        self._timer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._timer = asyncio.create_task(self._write_newlines())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._stop_timer()
        transport = self._request.transport
        if kind is not None and self._response.prepared and transport is not None:
            transport.abort()

    async def send(self, payload: dict[str, Any]) -> web.StreamResponse:
        """Send the answer and return the response."""
        await self._stop_timer()
        text = json.dumps(payload, ensure_ascii=False)
        data = text.encode("utf-8", "replace")
        if not self._response.prepared:
            return web.Response(body=data, headers={"Content-Type": CONTENT_TYPE})
        await self._response.write(data)
        await self._response.write_eof()
        return self._response

    async def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.wait([self._timer])
            self._timer = None

    async def _write_newlines(self) -> None:
        await asyncio.sleep(self._first_s)
        try:
            await self._response.prepare(self._request)
            while True:
                await self._response.write(b"\n")
                await asyncio.sleep(self._next_s)
        except ConnectionError:
            return  # the handler is being cancelled for the same reason
