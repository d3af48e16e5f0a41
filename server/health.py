"""GET /health, /version and the root: what supervisors and load balancers ask."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from server.errors import RESTART_RETRY_S
from server.state import STATE, ServerState
from server.version import version


def health(state: ServerState) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and body that describe the server now.

    A step that has not ended for longer than `Timings.stall_s` makes the server unhealthy, even
    though HTTP still works; it is healthy again as soon as the step ends.
    """
    if state.fault:
        return 503, {"status": "error", "message": state.fault}
    if state.draining:
        return 503, {"status": "draining", "running": len(state.generations)}
    if state.engine is None:
        progress = round(state.progress, 3)
        return 503, {"status": "loading", "progress": progress, "stage": state.stage}
    stats = state.engine.stats()
    if not stats.alive:
        return 503, {"status": "error", "message": stats.error or "the engine has stopped"}
    age_s = stats.last_step_age_s
    if age_s is not None and age_s > state.timings.stall_s:
        return 503, {
            "status": "error",
            "message": f"the engine has not finished a step for {age_s:.0f} s",
        }
    return 200, {
        "status": "ok",
        "model": state.model_name,
        "version": version(),
        "uptime_s": round(time.monotonic() - state.started_monotonic_s, 1),
        "running": stats.running,
        "waiting": stats.waiting,
    }


async def handle_health(request: web.Request) -> web.Response:
    """Answer GET /health."""
    status, body = health(request.app[STATE])
    headers = {"Retry-After": str(RESTART_RETRY_S)} if status == 503 else {}
    return web.json_response(body, status=status, headers=headers)


async def handle_version(_: web.Request) -> web.Response:
    """Answer GET /version."""
    return web.json_response({"version": version()})


async def handle_root(request: web.Request) -> web.Response:
    """Answer GET / and /v1, which clients use to see whether a server is there."""
    body = {"name": "ds41", "version": version(), "model": request.app[STATE].model_name}
    return web.json_response(body)
