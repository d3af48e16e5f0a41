"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from server.state import STATE, ServerState, model_not_found


def model_entry(state: ServerState, name: str) -> dict[str, Any]:
    """Describe the model under one of its names.

    Clients read the context length once and plan by it, so it is the length that really fits.
    """
    max_model_len = state.require_engine().max_model_len
    return {
        "id": name,
        "object": "model",
        "created": state.started_unix_s,
        "owned_by": "ds41",
        "root": state.file_name,
        "max_model_len": max_model_len,
        "context_length": max_model_len,
        "max_output_tokens": max_model_len - 1,
        "supported_reasoning_efforts": ["none", "low", "high", "max"],
        "default_reasoning_effort": "high",
    }


async def handle_list_models(request: web.Request) -> web.Response:
    """Answer GET /v1/models."""
    state = request.app[STATE]
    entries = [model_entry(state, name) for name in state.model_names]
    return web.json_response({"object": "list", "data": entries})


async def handle_get_model(request: web.Request) -> web.Response:
    """Answer GET /v1/models/{id}; an unknown id is 404."""
    state = request.app[STATE]
    name = request.match_info["id"]
    if name not in state.model_names:
        raise model_not_found(name)
    return web.json_response(model_entry(state, name))
