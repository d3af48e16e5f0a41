"""What surrounds every handler: request ids, one JSON shape for errors, one log line."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from server.errors import reply_for

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CLIENT_CLOSED_REQUEST = 499
"""Status in the log of a request whose client went away (nginx's number)."""
MALFORMED_CHARS = 120
"""Most characters of a malformed request that are logged."""
_REQUEST_ID = ContextVar("request_id", default="-")
_SAFE_ID = re.compile(r"[\x21-\x7e]{1,128}")


def current_request_id() -> str:
    """Id of the request that this task works for, "-" outside of one."""
    return _REQUEST_ID.get()


class RequestIdFilter(logging.Filter):
    """Adds `request_id` to every log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set the attribute and keep the record."""
        record.request_id = current_request_id()
        return True


class MalformedRequestFilter(logging.Filter):
    """Makes one line of what the HTTP library logs, with a traceback, when a client sends junk."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten such a record; keep every record."""
        problem = record.exc_info[1] if record.exc_info else None
        if isinstance(problem, (HttpProcessingError, web.RequestPayloadError)):
            what = " ".join(str(problem).split())[:MALFORMED_CHARS]
            record.msg, record.args = "malformed request: %s", (what,)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


async def add_request_id(_: web.Request, response: web.StreamResponse) -> None:
    """Put the request's id on the response; runs when headers are about to be sent."""
    response.headers["x-request-id"] = current_request_id()


@web.middleware
async def request_log(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id (the client's, if it sent a sane one) and log how it ended."""
    given = request.headers.get("x-request-id", "")
    _REQUEST_ID.set(given if _SAFE_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}")
    start_s = time.monotonic()
    status = CLIENT_CLOSED_REQUEST
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        took_ms = (time.monotonic() - start_s) * 1e3
        log.info(
            "method=%s path=%s status=%d ms=%.0f",
            request.method,
            request.rel_url.raw_path,
            status,
            took_ms,
        )


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into JSON errors."""
    try:
        return await handler(request)
    except web.HTTPException as problem:
        if problem.status < 400:
            raise
        return reply_for(problem).response()
    except ConnectionError as problem:
        if request.transport is None or request.transport.is_closing():
            return web.Response(status=CLIENT_CLOSED_REQUEST)  # nobody reads it
        return reply_for(problem).response()
    except Exception as problem:
        return reply_for(problem).response()
