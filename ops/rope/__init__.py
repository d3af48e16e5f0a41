"""Rotary position embedding."""

from ops.rope.reference import (
    apply_rope,
    inverse_frequencies,
    rope_table,
    yarn_inverse_frequencies,
)

__all__ = ["apply_rope", "inverse_frequencies", "rope_table", "yarn_inverse_frequencies"]
