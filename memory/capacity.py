"""How much memory a device or the host can still give, asked before anything is allocated."""

from __future__ import annotations

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")


def parse_meminfo(text: str) -> int | None:
    """Return the bytes that /proc/meminfo calls available, or None if it does not say."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that can be allocated on `device` (GPU or host), or None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return parse_meminfo(MEMINFO.read_text(encoding="utf-8"))
    except OSError:
        return None
