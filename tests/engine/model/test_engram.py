"""N-gram memory: rows against whole numbers of Python, the gated sum against float64 loops."""

import math
import random

import pytest
import torch

from engine.model.engram import Engram, EngramHasher
from memory.gguf import open_model


def slow_rows(config, tokens, layer, position):
    """Rows of one token by Python's unbounded whole numbers."""
    ids = [
        config.token_map[tokens[position - k] if position >= k else config.pad_token_id]
        for k in range(config.ngram_size)
    ]
    mixed, rows = ids[0] * config.multipliers[layer][0], []
    for gram in range(1, config.ngram_size):
        mixed ^= ids[gram] * config.multipliers[layer][gram]
        for head in range(config.num_heads):
            column = (gram - 1) * config.num_heads + head
            size, offset = config.bucket_sizes[layer][column], config.row_offsets[layer][column]
            rows.append(mixed % size + offset)
    return rows


def draw_tokens(config, length, seed):
    return random.Random(seed).choices(range(len(config.token_map)), k=length)


def test_rows_against_whole_numbers(small_config):
    config, length = small_config.engram, 30
    tokens = draw_tokens(config, length, 1)
    found = EngramHasher(config).rows(tokens, 0, length)
    assert len(found) == len(config.layers)
    for layer, rows in enumerate(found):
        assert rows.dtype == torch.int64 and rows.shape == (length, config.num_columns)
        assert rows.tolist() == [slow_rows(config, tokens, layer, p) for p in range(length)]
    largest = max(config.token_map) * max(map(max, config.multipliers))
    assert largest > 2**51, "the products need 64 bits"


@pytest.mark.parametrize("splits", [(1,) * 12, (2, 10), (3, 1, 8), (5, 7), (11, 1)])
def test_pieces_equal_the_whole(small_config, splits):
    config = small_config.engram
    hasher, tokens = EngramHasher(config), draw_tokens(config, 12, 2)
    whole, start, pieces = hasher.rows(tokens, 0, 12), 0, []
    for length in splits:
        # tokens at and beyond the end of a piece must not matter
        seen = tokens[: start + length] + draw_tokens(config, 3, start)
        pieces.append(hasher.rows(seen, start, start + length))
        start += length
    for layer, expected in enumerate(whole):
        assert torch.equal(torch.cat([piece[layer] for piece in pieces]), expected)


def test_mapped_pad_stands_before_the_start(small_config):
    config = small_config.engram
    assert config.token_map[config.pad_token_id] != config.pad_token_id
    hasher, tokens = EngramHasher(config), draw_tokens(config, 6, 3)
    padded = [config.pad_token_id] * (config.ngram_size - 1) + tokens
    skipped = config.ngram_size - 1
    for plain, shifted in zip(
        hasher.rows(tokens, 0, 6), hasher.rows(padded, skipped, skipped + 6), strict=True
    ):
        assert torch.equal(plain, shifted)


@pytest.mark.parametrize("case", ["prefill_1", "prefill_7", "prefill_64", "prefill_300"])
def test_golden_rows(golden_gguf, golden_case, case):
    golden = golden_case(case, False)
    with open_model(golden_gguf) as file:
        config = file.config.engram
    tokens, positions = golden["tokens"].tolist(), golden["positions"].long()
    found = EngramHasher(config).rows(tokens, 0, len(tokens))
    for index, layer in enumerate(config.layers):
        base = config.row_offsets[index][0]  # golden rows count from the layer's own first row
        expected = golden[f"engram_rows.{layer}"].long() + base
        assert torch.equal(found[index][positions], expected)


def slow_memory(module, x, rows, eps):
    """Gates [T, H] and streams [T, H, D] in float64."""
    w = {name: parameter.double().cpu() for name, parameter in module.named_parameters()}
    x, rows = x.double().cpu(), rows.double().cpu()
    t, streams, hidden = x.shape
    gates, out = torch.zeros(t, streams, dtype=torch.float64), x.clone()
    for token in range(t):
        projected = w["kv"] @ rows[token]
        value = projected[streams * hidden :]
        for s in range(streams):
            key, stream = projected[s * hidden : (s + 1) * hidden], x[token, s]
            dot = float((stream * w["gate_weight"][s] * key).sum())
            dot /= math.sqrt(float(stream.square().mean()) + eps)
            dot /= math.sqrt(float(key.square().mean()) + eps)
            dot /= math.sqrt(hidden)
            root = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)
            gates[token, s] = 1 / (1 + math.exp(-root))
            out[token, s] += gates[token, s] * value
    return gates, out


def test_gated_sum_in_float64(small_config, randomise, make_step, device):
    module = randomise(Engram(small_config, torch.float32), 30, device)
    g = torch.Generator().manual_seed(31)
    x = torch.randn(9, small_config.hc_streams, small_config.hidden_size, generator=g)
    rows = torch.randn(9, small_config.engram.width, generator=g)
    x, rows, heard = x.to(device), rows.to(device), {}
    ctx = make_step(
        range(9), 0, prefill=True, device=device, probe=lambda n, layer, v: heard.update({n: v})
    )
    out = module(x, rows, ctx, 3)
    gates, expected = slow_memory(module, x, rows, small_config.norm_eps)
    assert gates.min() < 0.4 and gates.max() > 0.6, "both signs occur"
    torch.testing.assert_close(out.double().cpu(), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(heard["engram_gate"].double().cpu(), gates, atol=1e-5, rtol=0)
    silent = module(x, rows, make_step(range(9), 0, prefill=True, device=device), 3)
    assert torch.equal(silent, out), "a probe changes nothing"


def test_streams_keep_their_type(small_config, randomise, make_step):
    module = randomise(Engram(small_config, torch.float32), 32)
    g = torch.Generator().manual_seed(33)
    x = torch.randn(4, small_config.hc_streams, small_config.hidden_size, generator=g).bfloat16()
    rows = torch.randn(4, small_config.engram.width, generator=g)
    out = module(x, rows, make_step(range(4), 0, prefill=True), 1)
    assert out.dtype == torch.bfloat16
    _, expected = slow_memory(module, x, rows, small_config.norm_eps)
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=2.0**-8)
