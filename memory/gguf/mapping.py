"""Read-only memory maps of files as torch tensors, without copies."""

from __future__ import annotations

import mmap
import os

import numpy as np
import torch

from engine.errors import ModelFileError
from memory.gguf.header import open_regular


class _ReadOnlyBuffer:
    """Presents a map to numpy as a plain byte array and keeps the map alive.

    The map is shared and read-only, which costs no committed memory however large it is; a private
    writable one would be charged in full. torch has no read-only tensors and warns about arrays
    that say they are, so the array does not say so. Nothing may write into it: the kernel would end
    the process.
    """

    def __init__(self, source: mmap.mmap) -> None:
        view = np.frombuffer(source, dtype=np.uint8)
        self._view = view
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": view.shape,
            "data": (view.ctypes.data, False),
        }


def map_bytes(path: str, start: int, stop: int) -> torch.Tensor:
    """Map bytes [start, stop) of a file.

    Args:
        path: the file.
        start: first byte, any alignment.
        stop: byte after the last.

    Returns:
        uint8 [stop - start] on the CPU, zero-copy and read-only; the map lives as long as the
        tensor or any view of it.

    Raises:
        ModelFileError: the file cannot be mapped or has become shorter.
    """
    fd, size = open_regular(path)
    try:
        if size < stop:
            raise ModelFileError(path, "", f"the file has shrunk to {size} bytes, needs {stop}")
        begin = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        source = mmap.mmap(fd, stop - begin, access=mmap.ACCESS_READ, offset=begin)
    except (OSError, ValueError) as problem:
        raise ModelFileError(path, "", f"cannot map bytes {start} to {stop}: {problem}") from None
    finally:
        os.close(fd)
    return torch.from_numpy(np.asarray(_ReadOnlyBuffer(source))[start - begin :])
