"""Compiles a step function once per bucket into one full graph.

Compile caches hang on a function's code object, and more than eight static shapes on one of them
stop with an error. Newer torch has an argument against that; a renamed copy of the code object
works on every supported version (2.11 to 2.14), so each bucket gets one.
"""

from __future__ import annotations

import types
import warnings
from typing import Any

import torch

from engine.errors import CaptureError


def clone_function(function: types.FunctionType, name: str) -> types.FunctionType:
    """Return a copy of `function` with a code object of its own, called `name`."""
    code = function.__code__.replace(co_name=name, co_qualname=name)
    copy = types.FunctionType(
        code, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = dict(function.__annotations__)
    return copy


def compile_step(function: types.FunctionType, name: str, backend: str = "inductor") -> Any:
    """Return `function` compiled for static shapes, as one graph.

    Args:
        function: a plain function; everything it reads comes in as arguments.
        name: a name of its own per bucket, seen in traces.
        backend: `inductor`, or `aot_eager` to check tracing alone.

    Returns:
        A callable that compiles at its first call.

    Raises (at the first call):
        CaptureError: the function has a graph break or the compiler fails; names the bucket.
    """
    # Advice to torch's own developers, of no use to the person who waits for the model.
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled")
    compiled = torch.compile(
        clone_function(function, name), fullgraph=True, dynamic=False, backend=backend
    )

    def call(*args: Any) -> Any:
        try:
            return compiled(*args)
        except torch._dynamo.exc.TorchDynamoException as problem:
            first_line = str(problem).strip().partition("\n")[0]
            raise CaptureError(
                f"compiling {name}: {first_line}; run with --set compiled_decode=off to go without"
            ) from problem

    return call
