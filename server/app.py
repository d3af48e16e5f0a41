"""The aiohttp application: routes, shared state and what surrounds the handlers."""

from __future__ import annotations

from aiohttp import web

from server.chat_completions import handle_chat_completions
from server.completions import handle_completions
from server.health import handle_health, handle_root, handle_version
from server.middleware import add_request_id, json_errors, request_log
from server.models import handle_get_model, handle_list_models
from server.state import STATE, ServerState
from server.tokenize import handle_detokenize, handle_tokenize


def build_app(state: ServerState) -> web.Application:
    """Return the application for one server.

    Every OpenAI path also exists without `/v1`, because base URLs come in both forms.
    """
    app = web.Application(
        middlewares=[request_log, json_errors], client_max_size=state.config.max_body_bytes
    )
    app[STATE] = state
    app.on_response_prepare.append(add_request_id)
    for prefix in ("/v1", ""):
        app.add_routes(
            [
                web.get(f"{prefix}/models", handle_list_models),
                web.get(f"{prefix}/models/{{id:.+}}", handle_get_model),
                web.post(f"{prefix}/chat/completions", handle_chat_completions),
                web.post(f"{prefix}/completions", handle_completions),
                web.get(f"{prefix}/health", handle_health),
                web.get(prefix or "/", handle_root),
            ]
        )
    app.add_routes(
        [
            web.get("/v1/", handle_root),
            web.get("/version", handle_version),
            web.post("/tokenize", handle_tokenize),
            web.post("/detokenize", handle_detokenize),
        ]
    )
    return app
