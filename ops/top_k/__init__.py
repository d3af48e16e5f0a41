"""Exact selection."""

from ops.top_k.reference import candidate_mask, exact_top_k, select_rows

__all__ = ["candidate_mask", "exact_top_k", "select_rows"]
