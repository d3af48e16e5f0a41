"""Expert routing."""

from ops.router.reference import route

__all__ = ["route"]
