"""The version that the server and the command line report."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the version of the installed package, or `0+unknown` in a bare source tree."""
    try:
        return metadata.version("ds41")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def fingerprint() -> str:
    """Return `system_fingerprint` of answers."""
    return f"ds41-{version()}"
