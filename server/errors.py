"""From an exception to the one JSON shape of every error answer.

`{"error": {"message", "type", "param", "code"}}` is what the OpenAI client turns into its exception
classes; any other shape loses the message. The class of an exception decides the status in one
table here; message text is never parsed. Answers never hold tracebacks, paths or prompt text: those
go to the log under the request id.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.errors import CapacityError, RequestError

log = logging.getLogger(__name__)

QUEUE_RETRY_S = 2
"""Seconds that a client is told to wait when the queue is full."""
RESTART_RETRY_S = 5
"""Seconds that a client is told to wait while the model loads or the process restarts."""
NO_RETRY = {"x-should-retry": "false"}
"""Tells the OpenAI client that the same request would fail again."""


@dataclass(frozen=True)
class ErrorReply:
    """One error as the client sees it."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the answer."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> web.Response:
        """Return the HTTP answer."""
        return web.Response(
            status=self.status,
            text=json.dumps(self.body(), ensure_ascii=False),
            content_type="application/json",
            headers=self.headers,
        )


class ServiceError(Exception):
    """The service, not the request, is why there is no answer; carries the reply."""

    def __init__(self, reply: ErrorReply) -> None:
        self.reply = reply
        super().__init__(reply.message)


def model_loading(progress: float) -> ServiceError:
    """The model is not there yet; `progress` is 0 to 1."""
    message = f"Loading model ({progress:.0%}); try again in a few seconds."
    return _unavailable(message, "model_loading", {"Retry-After": str(RESTART_RETRY_S)})


def shutting_down() -> ServiceError:
    """The server is draining."""
    message = "The server is shutting down and takes no new requests."
    return _unavailable(message, "shutting_down", {"Retry-After": str(RESTART_RETRY_S)})


def engine_dead() -> ServiceError:
    """The engine stopped; only a restart of the process helps."""
    message = "The engine has stopped; the server must be restarted. The server's log says why."
    headers = {"Retry-After": str(RESTART_RETRY_S), **NO_RETRY}
    return _unavailable(message, "engine_error", headers)


def generation_failed() -> ServiceError:
    """The engine gave up on this request while it ran."""
    message = "The engine failed on this request; the server's log has the details."
    return ServiceError(
        ErrorReply(500, message, "server_error", "internal_error", headers=NO_RETRY)
    )


def _unavailable(message: str, code: str, headers: Mapping[str, str]) -> ServiceError:
    return ServiceError(ErrorReply(503, message, "server_error", code, headers=headers))


def reply_for(problem: BaseException) -> ErrorReply:
    """Return what to tell the client about an exception; unexpected ones are logged here."""
    if isinstance(problem, ServiceError):
        return problem.reply
    if isinstance(problem, RequestError):
        return ErrorReply(
            problem.status, str(problem), "invalid_request_error", problem.code, problem.param
        )
    if isinstance(problem, CapacityError):
        message = "Too many requests are waiting; try again in a moment."
        headers = {"Retry-After": str(QUEUE_RETRY_S)}
        return ErrorReply(429, message, "rate_limit_error", "queue_full", headers=headers)
    if isinstance(problem, web.HTTPException):
        return _reply_for_http(problem)
    log.error("unexpected error while answering a request", exc_info=problem)
    message = "Internal error; the server's log has the details under the request id."
    return ErrorReply(500, message, "server_error", "internal_error", headers=NO_RETRY)


def _reply_for_http(problem: web.HTTPException) -> ErrorReply:
    """Rewrite an error of the HTTP library, whose own body would be text or HTML."""
    kind = "invalid_request_error" if problem.status < 500 else "server_error"
    if isinstance(problem, web.HTTPNotFound):
        return ErrorReply(404, "No such path on this server.", kind, "not_found")
    if isinstance(problem, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(problem.allowed_methods))
        message = f"Method {problem.method} is not allowed here; allowed: {allowed}."
        return ErrorReply(405, message, kind, "method_not_allowed", headers={"Allow": allowed})
    if isinstance(problem, web.HTTPRequestEntityTooLarge):
        message = "The request body is larger than this server accepts."
        return ErrorReply(413, message, kind, "request_too_large")
    return ErrorReply(problem.status, problem.reason, kind)
