"""Teacher-forced logits of a token sequence, for comparisons and evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.errors import RequestError
from engine.loading import load_model
from engine.model.load import Progress
from engine.runner import ModelRunner, RowGroup


def score_sequence(
    runner: ModelRunner,
    token_ids: Sequence[int],
    chunk: int | None = None,
    decode_from: int | None = None,
    progress: Progress | None = None,
    slot: int = 0,
) -> NDArray[np.float32]:
    """Return logits [T, V] after every token of a sequence.

    Args:
        runner: a model; its slot `slot` is overwritten.
        token_ids: the sequence, at least one id.
        chunk: tokens of a prefill step; None takes all at once.
        decode_from: position from which on tokens go one at a time through decode steps.
        progress: hears the fraction done.
        slot: cache slot to use.
    """
    total = len(token_ids)
    out = np.empty((total, runner.backbone.config.vocab_size), np.float32)
    prefill_end = total if decode_from is None else min(decode_from, total)
    start = 0
    while start < prefill_end:
        end = min(start + (chunk or prefill_end), prefill_end)
        collapsed, _ = runner.prefill(slot, token_ids, start, end)
        for first, logits in runner.logits_in_pieces(collapsed):
            out[start + first : start + first + logits.shape[0]] = logits.cpu().numpy()
        start = end
        if progress is not None:
            progress("scoring", start / total)
    for position in range(prefill_end, total):
        group = RowGroup(slot, token_ids, position, position + 1)
        out[position] = runner.decode([group])[0].cpu().numpy()
        if progress is not None:
            progress("scoring", (position + 1) / total)
    return out


def check_score_request(
    token_ids: Sequence[int], vocab_size: int, chunk: int | None, decode_from: int | None
) -> None:
    """Check the arguments of a scoring run.

    Raises:
        RequestError: no tokens, an id outside the vocabulary, a chunk below 1, or decode_from
            below 0.
    """
    if not token_ids:
        raise RequestError("score: the token list is empty", "tokens")
    for position, token in enumerate(token_ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise RequestError(
                f"score: token {token!r} at position {position} is not an id of this model "
                f"(0..{vocab_size - 1})",
                "tokens",
            )
    if chunk is not None and chunk < 1:
        raise RequestError("score: chunk must be at least 1", "chunk")
    if decode_from is not None and decode_from < 0:
        raise RequestError("score: decode-from must be 0 or above", "decode_from")


def score_tokens(
    model_path: str | Path,
    config: EngineConfig,
    token_ids: Sequence[int],
    *,
    chunk: int | None = None,
    decode_from: int | None = None,
    on_progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Load a model for one sequence and return its logits [T, V] float32.

    The context is made as long as the sequence, whatever `max_model_len` says.

    Raises:
        RequestError: bad tokens or arguments, or a sequence longer than the model's context.
        ModelFileError, ConfigError, PlacementError, CaptureError: as `load_model`.
    """
    config = dataclasses.replace(
        config, max_model_len=max(len(token_ids), 1), max_num_seqs=1, decode_buckets=(1,)
    )
    if decode_from is None:  # nothing would run the step that takes long to compile
        config = dataclasses.replace(config, compiled_decode="off", cuda_graphs="off")
    loaded = load_model(model_path, config, on_progress)
    try:
        runner = loaded.runner
        check_score_request(token_ids, runner.backbone.config.vocab_size, chunk, decode_from)
        limit = runner.state.max_model_len
        if len(token_ids) > limit:
            raise RequestError(
                f"score: {len(token_ids)} tokens exceed the model's context of {limit}", "tokens"
            )
        return score_sequence(runner, token_ids, chunk, decode_from, on_progress)
    finally:
        loaded.close()
