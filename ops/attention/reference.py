"""Attention of latent key/value vectors with a sink, over a window and selected compressed rows.

One vector is key and value of all heads. Legend: T rows (queries), A heads, C channels, E window
entries, K selected rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASKED = -1e30  # finite, so that a row without any entry gives zeros and not NaN


def _scores(q: Tensor, entries: Tensor, mask: Tensor) -> Tensor:
    t, a, c = q.shape
    if entries.dim() == 2:
        z = torch.matmul(q.reshape(t * a, c), entries.t()).view(t, a, -1)
    else:
        z = torch.matmul(q, entries.transpose(-1, -2))
    return torch.where(mask.unsqueeze(-2), z, _MASKED)


def _values(p: Tensor, entries: Tensor) -> Tensor:
    t, a, e = p.shape
    if entries.dim() == 2:
        return torch.matmul(p.reshape(t * a, e), entries).view(t, a, -1)
    return torch.matmul(p, entries)


def sink_attention(
    q: Tensor,
    window: Tensor,
    window_mask: Tensor,
    selected: Tensor | None,
    selected_mask: Tensor | None,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """Attend to window entries and selected rows together.

    Args:
        q: [T, A, C].
        window: [E, C] shared by all queries or [T, E, C].
        window_mask: [T, E] bool, True where the query sees the entry.
        selected: [T, K, C] or None.
        selected_mask: [T, K] bool or None.
        sink: [A] float32, joins the denominator unscaled and without a value.
        scale: factor on the scores.

    Returns:
        [T, A, C] in the type of `q`; computed in float32. A query that sees nothing gives zeros.
    """
    query = q.float() * scale
    window = window.float()
    z = _scores(query, window, window_mask)
    if selected is not None and selected_mask is not None:
        selected = selected.float()
        z = torch.cat((z, _scores(query, selected, selected_mask)), -1)
    top = torch.maximum(z.amax(-1), sink)
    p = torch.exp(z - top.unsqueeze(-1))
    p = torch.where(z == _MASKED, 0.0, p)
    p = p / (p.sum(-1) + torch.exp(sink - top)).unsqueeze(-1)
    entries = window.shape[-2]
    out = _values(p[..., :entries], window)
    if selected is not None:
        out = out + _values(p[..., entries:], selected)
    return out.to(q.dtype)
