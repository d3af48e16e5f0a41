"""Fills a model's weights from a file, tensor by tensor, straight into final type and place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.errors import InternalError, ModelFileError

Progress = Callable[[str, float], None]
"""Called as progress(stage text, fraction done)."""


class TensorSource(Protocol):
    """What the loader needs of an opened file."""

    def decode(
        self, name: str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return a tensor by file name, decoded, in its logical shape."""
        ...


def fill_weights(
    module: nn.Module,
    source: TensorSource,
    names: Mapping[str, str],
    device: torch.device,
    path: str,
    progress: Progress | None = None,
    stage: str = "loading weights",
) -> None:
    """Replace every meta parameter of `module` by a file tensor and move its buffers.

    Args:
        module: `Backbone` or `Draft`.
        source: the opened file.
        names: tensor name -> parameter path.
        device: where the weights go.
        path: the file's name, for messages.
        progress: hears about every tensor.
        stage: text for `progress`.

    Raises:
        ModelFileError: a tensor's element count does not fit its weight, or it holds NaN or
            infinity.
        InternalError: a weight is left without a tensor (the name table is wrong).
    """
    for number, (name, parameter_path) in enumerate(names.items()):
        parent_path, _, attribute = parameter_path.rpartition(".")
        parent = module.get_submodule(parent_path)
        wanted: Tensor = getattr(parent, attribute)
        value = source.decode(name, dtype=wanted.dtype, device=device)
        if value.numel() != wanted.numel():
            raise ModelFileError(
                path,
                f"tensor {name}",
                f"has shape {list(value.shape)}, the model needs {list(wanted.shape)}",
            )
        if not bool(torch.isfinite(value.sum(dtype=torch.float32))) and not bool(
            torch.isfinite(value).all()
        ):
            raise ModelFileError(
                path, f"tensor {name}", "holds NaN or infinity; download the file again"
            )
        value = value.reshape(wanted.shape).contiguous()
        setattr(parent, attribute, nn.Parameter(value, requires_grad=False))
        if progress is not None:
            progress(stage, (number + 1) / len(names))
    for buffer_path, buffer in list(module.named_buffers()):
        parent_path, _, attribute = buffer_path.rpartition(".")
        setattr(module.get_submodule(parent_path), attribute, buffer.to(device))
    left = [name for name, parameter in module.named_parameters() if parameter.is_meta]
    if left:
        raise InternalError(f"weights without a file tensor: {', '.join(left[:5])}")
