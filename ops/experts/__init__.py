"""Experts."""

from ops.experts.reference import clamped_swiglu, routed_experts

__all__ = ["clamped_swiglu", "routed_experts"]
