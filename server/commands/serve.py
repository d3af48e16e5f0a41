"""`ds41 serve`: the OpenAI-compatible server."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import logging
import os
import sys
import time

from engine.errors import EngineError
from server.commands.options import add_optional_model, model_name, read_config, resolve_model
from server.commands.progress import ProgressReport
from server.middleware import MalformedRequestFilter, RequestIdFilter
from server.runner import Server, url_host
from server.services import EngineServices
from server.state import ServerState

SUMMARY = "serve a model through the OpenAI API"
EXAMPLES = """examples:
  ds41 serve                                the embedded tiny model on port 8000
  ds41 serve model.gguf --port 9000         a model file; any shard of a split one
  ds41 serve model.gguf --set max_num_seqs=8 --ctx 32768
"""
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s request=%(request_id)s %(message)s"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's own options."""
    add_optional_model(parser)
    group = parser.add_argument_group("server options")
    group.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    group.add_argument("--port", type=int, help="port (default 8000); 0 takes a free one")
    group.add_argument(
        "--served-model-name",
        metavar="NAME[,ALIAS...]",
        help="model name in answers (default: the file's name)",
    )
    group.add_argument(
        "--strict-model",
        action="store_const",
        const=True,
        help="refuse requests that name another model",
    )


def run(args: argparse.Namespace, services: EngineServices) -> int:
    """Serve until a signal comes; return the exit code.

    Raises:
        EngineError: the address is taken, the model cannot be loaded, or the engine stopped.
    """
    config = read_config(
        args,
        host=args.host,
        port=args.port,
        served_model_name=args.served_model_name,
        strict_model=args.strict_model,
    )
    path = resolve_model(args.model, services)
    set_up_logging(args.debug)
    state = ServerState(config=config, file_name=model_name(path))
    started_s = time.monotonic()

    def on_listening(port: int) -> None:
        url = f"http://{url_host(config.host)}:{port}"
        print(f"ds41: listening on {url} (model {state.model_name})", flush=True)
        if not is_loopback(config.host):
            print(
                f"ds41: warning: {config.host} can be reached from other machines, and there is "
                "no access control",
                file=sys.stderr,
            )

    def on_ready() -> None:
        context = state.engine.max_model_len if state.engine else 0
        took_s = time.monotonic() - started_s
        print(f"ds41: ready after {took_s:.1f} s (context {context} tokens)", file=sys.stderr)

    with ProgressReport() as progress:

        def load(on_progress: object) -> object:
            def report(stage: str, done: float) -> None:
                progress(stage, done)
                on_progress(stage, done)  # type: ignore[operator]

            return services.load_engine(path, config, report)

        server = Server(state, load, on_listening=on_listening, on_ready=on_ready)  # type: ignore[arg-type]
        code = 0
        try:
            asyncio.run(server.run())
        except EngineError as problem:
            if not server.is_stuck:
                raise
            print(f"ds41: error: {problem}", file=sys.stderr)
            code = problem.exit_code
    if server.is_stuck:  # a thread in native code would hold up or crash an orderly exit
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def set_up_logging(debug: bool) -> None:
    """Log to standard error, one line per event, each with the id of its request."""
    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.addFilter(MalformedRequestFilter())
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
