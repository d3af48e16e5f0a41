"""Exact top-k with a defined order of ties, and the candidate blocks of the two-level indexer.

Library top-k leaves the order of equal values open; equal scores are common here (FP4 keys, ReLU).
We take the lower position, by ranking on one unique 64-bit key per entry.
Legend: T rows, N entries, K kept.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ordered_key(scores: Tensor) -> Tensor:
    """Map float32 scores [..., N] to unique int64 keys: greater score first, then lower position.

    -0.0 counts as 0.0. NaN is not a score: it ranks by its bit pattern, deterministically.
    """
    scores = torch.where(scores == 0, 0.0, scores)
    bits = scores.contiguous().view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # monotonic as a signed integer
    reverse = torch.arange(scores.shape[-1] - 1, -1, -1, device=scores.device)
    return ordered.to(torch.int64) * (1 << 32) + reverse


def exact_top_k(scores: Tensor, k: int) -> Tensor:
    """Return positions of the k greatest of float32 scores [..., N], best first; int64 [..., k].

    Ties go to the lower position. `k` must not exceed N.
    """
    return torch.topk(ordered_key(scores), k, dim=-1, sorted=True).indices


def select_rows(scores: Tensor, num_visible: Tensor, k: int) -> Tensor:
    """Return the selected rows of each query, ascending, -1 where unused.

    Args:
        scores: [T, N] float32, -inf where a row is not visible or not a candidate.
        num_visible: [T] int64; rows at or beyond it are never selected.
        k: most rows to select; min(k, N) columns come back.

    Returns:
        [T, min(k, N)] int64, the -1 entries last.
    """
    ids = exact_top_k(scores, min(k, scores.shape[-1]))
    unusable = (ids >= num_visible.unsqueeze(-1)) | (scores.gather(-1, ids) == float("-inf"))
    far = scores.shape[-1]
    ids = torch.where(unusable, far, ids).sort(-1).values
    return torch.where(ids == far, -1, ids)


def candidate_mask(scores: Tensor, num_visible: Tensor, block_size: int, num_blocks: int) -> Tensor:
    """Return which rows later indexers may consider.

    Blocks of `block_size` rows are ranked by their greatest score; the newest visible block is
    always kept; blocks without a visible row are dropped. Ties go to the lower block.

    Args:
        scores: [T, N] float32, -inf beyond the visible rows.
        num_visible: [T] int64, at least 1 where any block is to be pinned.
        num_blocks: blocks to keep.

    Returns:
        [T, N] bool. Identity while no query sees more than `num_blocks` blocks.
    """
    t, n = scores.shape
    total = (n + block_size - 1) // block_size
    padded = torch.nn.functional.pad(scores, (0, total * block_size - n), value=float("-inf"))
    block_scores = padded.unflatten(-1, (total, block_size)).amax(-1)
    newest = torch.div(num_visible - 1, block_size, rounding_mode="floor").unsqueeze(-1)
    is_newest = torch.arange(total, device=scores.device) == newest
    block_scores = torch.where(is_newest, float("inf"), block_scores)
    kept = exact_top_k(block_scores, min(num_blocks, total))
    keep = torch.zeros(t, total, dtype=torch.bool, device=scores.device)
    keep = keep.scatter(-1, kept, block_scores.gather(-1, kept) != float("-inf"))
    return keep.repeat_interleave(block_size, -1, output_size=total * block_size)[:, :n]
