"""Registers custom ops: schema, one implementation per device kind, and the fake for tracing.

Compiled graphs call these ops as opaque nodes and CUDA graphs capture what they launch. An op
returns fresh memory or nothing, and its schema declares every argument it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "ds41"
# Ops die with the library object, so it lives as long as the process.
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def define_op(
    schema: str,
    *,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    cuda: Callable[..., Any] | None = None,
) -> Any:
    """Define `ds41::<name>` and return the callable op.

    Args:
        schema: name, arguments and returns, in torch's schema language.
        reference: implementation in plain torch for the CPU, and for CUDA where `cuda` is None.
        fake: returns tensors of the right shape, type and strides without computing.
        cuda: kernel launcher for CUDA tensors.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CPU")
    _LIBRARY.impl(name, cuda if cuda is not None else reference, "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name)
