"""Experts."""

from ops.experts.reference import ExpertWeights, clamped_swiglu, routed_experts

__all__ = ["ExpertWeights", "clamped_swiglu", "routed_experts"]
