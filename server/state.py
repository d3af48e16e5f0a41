"""What the request handlers share: settings, the engine once loaded, the server's phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from engine.config import EngineConfig
from engine.errors import RequestError
from server import errors

if TYPE_CHECKING:
    from engine.api import Engine
    from server.bridge import Generation


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Times of the HTTP layer that no user has to set; seconds."""

    first_newline_s: float = 20.0
    """Wait after which an answer that is not streamed starts with empty lines."""
    stall_s: float = 30.0
    """Age of a step in progress beyond which the server calls itself unhealthy."""
    poll_s: float = 0.25
    """How often the engine's own state is looked at."""
    fault_linger_s: float = 1.0
    """Time that clients get to read their errors before a faulty server exits."""


@dataclass(kw_only=True)
class ServerState:
    """Shared by all handlers of one server; changed on the event loop only, but for `progress`."""

    config: EngineConfig
    file_name: str
    """Name of the model file, the model's name where no other is set."""
    timings: Timings = field(default_factory=Timings)
    started_unix_s: int = field(default_factory=lambda: int(time.time()))
    started_monotonic_s: float = field(default_factory=time.monotonic)
    engine: Engine | None = None
    stage: str = "starting"
    """What loading is doing now."""
    progress: float = 0.0
    """Share of loading that is done, 0 to 1."""
    fault: str = ""
    """Why the server cannot serve any more; empty while it can."""
    draining: bool = False
    generations: set[Generation] = field(default_factory=set)
    """Generations in flight, in no order."""

    @property
    def model_names(self) -> list[str]:
        """Names under which the model answers; the first one is reported."""
        names = [name.strip() for name in self.config.served_model_name.split(",")]
        return [name for name in names if name] or [self.file_name]

    @property
    def model_name(self) -> str:
        """The name that answers report."""
        return self.model_names[0]

    def require_engine(self) -> Engine:
        """Return the engine.

        Raises:
            ServiceError: 503, as the server is loading, draining or broken.
        """
        if self.fault:
            raise errors.engine_dead()
        if self.draining:
            raise errors.shutting_down()
        if self.engine is None:
            raise errors.model_loading(self.progress)
        return self.engine

    def check_model(self, body: dict[str, Any]) -> None:
        """Check the request's `model`: any name will do unless `strict_model` is set.

        Raises:
            RequestError: not a string, or (strict) not a name of the model: 404.
        """
        name = body.get("model")
        if name is not None and not isinstance(name, str):
            raise RequestError("model must be a string", "model", "invalid_value")
        if self.config.strict_model and name not in (None, "", *self.model_names):
            raise model_not_found(name)


def model_not_found(name: str | None) -> RequestError:
    """404 for a model name that this server does not have."""
    return RequestError(
        f"The model {name!r} does not exist here.", "model", "model_not_found", status=404
    )


STATE = web.AppKey("state", ServerState)
"""Where the application keeps its ServerState."""
