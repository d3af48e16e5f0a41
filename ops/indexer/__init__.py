"""Index scores."""

from ops.indexer.reference import index_scores

__all__ = ["index_scores"]
