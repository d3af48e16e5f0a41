"""Checks of the layer roles: which layers own compressed rows, index keys and top-k selections."""

from __future__ import annotations

from engine.model_config import ModelConfig
from memory.gguf.keys import KeyReader


def check_roles(config: ModelConfig, keys: KeyReader) -> None:
    """Check that every layer finds its sources and that the candidate step can work.

    A layer with ratio r > 0 reads the rows of the latest KV source at or before it and the top-k of
    the latest index source at or before it; both must have its ratio.

    Raises:
        ModelFileError: names the key and the layer at fault.
    """
    ratios = config.compress_ratios
    for layer, ratio in enumerate(ratios):
        if ratio not in (0, 1, 2):
            raise keys.fail(
                "attention.compress_ratios", f"layer {layer} has ratio {ratio}; 0, 1 or 2 are known"
            )
    lists = (
        ("attention.kv_source_layers", config.kv_source_layers),
        ("attention.indexer.source_layers", config.index_source_layers),
    )
    for key, sources in lists:
        if list(sources) != sorted(set(sources)):
            raise keys.fail(key, f"{list(sources)[:16]} is not strictly ascending")
        for source in sources:
            if not 0 <= source < config.num_layers:
                raise keys.fail(key, f"layer {source} is not below {config.num_layers}")
            if ratios[source] == 0:
                raise keys.fail(key, f"layer {source} is a source but has compress ratio 0")
        for layer, ratio in enumerate(ratios):
            earlier = [source for source in sources if source <= layer]
            if ratio and not earlier:
                raise keys.fail(key, f"layer {layer} has ratio {ratio} but no source before it")
            if ratio and ratios[earlier[-1]] != ratio:
                raise keys.fail(
                    key,
                    f"layer {layer} has ratio {ratio}, its source {earlier[-1]} has "
                    f"{ratios[earlier[-1]]}",
                )
    check_candidates(config, keys)


def check_candidates(config: ModelConfig, keys: KeyReader) -> None:
    """Check the candidate step: its source, its readers and its size.

    Raises:
        ModelFileError: names the key at fault.
    """
    source = config.candidate_source_layer
    if source is None:
        return
    key = "attention.indexer.candidate_source_layer"
    if source not in config.index_source_layers:
        raise keys.fail(key, f"layer {source} is not among the index source layers")
    for layer in config.index_source_layers:
        if layer <= source:
            continue
        if config.compress_ratios[layer] != config.compress_ratios[source]:
            raise keys.fail(key, f"index source {layer} has another ratio than layer {source}")
        if config.kv_source(layer) != config.kv_source(source):
            raise keys.fail(key, f"index source {layer} has another KV source than layer {source}")
    blocks, size = config.candidate_top_k_blocks, config.candidate_block_size
    # The last block may hold a single row, so this many rows are certain to be candidates.
    if blocks * size - (size - 1) < config.index_top_k:
        raise keys.fail(
            "attention.indexer.candidate_top_k_blocks",
            f"{blocks} blocks of {size} rows cannot hold the top {config.index_top_k}",
        )
