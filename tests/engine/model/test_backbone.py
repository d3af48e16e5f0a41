"""The whole model against the golden vectors, float32 on the CPU.

Limits: 1e-4 absolute without cache rounding, 5e-4 with it; ids exact.
"""

import pytest
import torch

from engine.model.inputs import StepShape

LIMIT = {False: 1e-4, True: 5e-4}
QUANT = pytest.mark.parametrize("quant", [False, True], ids=["quant_off", "quant_on"])


def assert_near(value, expected, limit, what):
    assert torch.isfinite(value).all(), what
    difference = (value - expected).abs().max().item() if expected.numel() else 0.0
    assert difference <= limit, f"{what}: {difference:.2e} above {limit:.0e}"


def golden_rows(golden):
    """Return (positions, logits) of the rows that a case holds."""
    if "logits" in golden:
        return torch.arange(len(golden["tokens"])), golden["logits"]
    return golden["positions"].long(), golden["logits_rows"]


def run_probed(model, tokens):
    seen = {}
    logits = model.step(
        tokens,
        0,
        len(tokens),
        True,
        probe=lambda name, layer, v: seen.__setitem__((name, layer), v),
    )
    return logits, seen


@QUANT
@pytest.mark.parametrize("case", ["prefill_1", "prefill_7", "prefill_64", "prefill_300"])
def test_prefill_matches_golden_layer_by_layer(golden_models, golden_case, case, quant):
    golden, model, limit = golden_case(case, quant), golden_models(quant), LIMIT[quant]
    tokens, rows = golden["tokens"].tolist(), golden["positions"].long()
    logits, seen = run_probed(model, tokens)
    positions, expected = golden_rows(golden)
    assert_near(logits[positions], expected, limit, "logits")
    assert torch.equal(logits.argmax(-1), golden["argmax"].long())
    compared = 0
    for key, expected in golden.items():
        name, _, number = key.rpartition(".")
        layer = int(number) if number.isdigit() else -1
        if name in ("x_in", "pre_out", "window_kv", "engram_gate"):
            value = seen[(name, layer)][rows]
        elif name in ("attn_in", "attn_out", "ffn_in", "ffn_out"):
            value = seen[(name, layer)][rows[-8:]]
        elif key in ("x_out", "collapsed"):
            value = seen[(key, -1)][rows]
        elif key == "main_hidden":
            value = model.taps.cpu()[rows]
        else:
            continue
        assert_near(value, expected, limit, key)
        compared += 1
    assert compared >= 8 * 7 + 3


@QUANT
def test_discrete_choices_match_golden(golden_models, golden_case, quant):
    golden, model = golden_case("prefill_300", quant), golden_models(quant)
    tokens, rows = golden["tokens"].tolist(), golden["positions"].long()
    _, seen = run_probed(model, tokens)
    sources = model.file.config.index_source_layers
    for layer in sources:
        expected = golden[f"topk.{layer}"].long()
        ids = seen[("topk", layer)]
        assert torch.equal(ids, expected[:, : ids.shape[1]]), layer
        assert (expected[:, ids.shape[1] :] == -1).all()
    source = model.file.config.candidate_source_layer
    candidates = seen[("candidates", source)]
    assert torch.equal(candidates, golden[f"candidates.{source}"].bool())
    assert not candidates[-1].all(), "the filter acts in this case"
    for layer in range(model.file.config.num_layers):
        ids, expected = seen[("expert_ids", layer)][rows], golden[f"expert_ids.{layer}"].long()
        order, expected_order = ids.argsort(-1), expected.argsort(-1)
        assert torch.equal(ids.gather(-1, order), expected.gather(-1, expected_order)), layer
        assert_near(
            seen[("expert_weights", layer)][rows].gather(-1, order),
            golden[f"expert_weights.{layer}"].gather(-1, expected_order),
            1e-5,
            f"expert_weights.{layer}",
        )


@QUANT
@pytest.mark.parametrize("chunk", [1, 7, 64, 127, 128, 129])
def test_chunked_prefill_equals_one_piece(golden_models, golden_case, chunk, quant):
    golden, model = golden_case("prefill_300", quant), golden_models(quant)
    tokens = golden["tokens"].tolist()
    pieces = [
        model.step(tokens, start, min(start + chunk, 300), True) for start in range(0, 300, chunk)
    ]
    logits = torch.cat(pieces)
    positions, expected = golden_rows(golden)
    assert_near(logits[positions], expected, LIMIT[quant], "logits")
    assert torch.equal(logits.argmax(-1), golden["argmax"].long())


@QUANT
def test_golden_chunks_and_padding(golden_models, golden_case, quant):
    golden, model = golden_case("chunked_64_64_172", quant), golden_models(quant)
    tokens, start, pieces = golden["tokens"].tolist(), 0, []
    for length in golden["chunks"].tolist():
        pieces.append(model.step(tokens, start, start + length, True, padding=length % 5))
        start += length
    logits = torch.cat(pieces)
    positions, expected = golden_rows(golden)
    assert_near(logits[positions], expected, LIMIT[quant], "logits")
    assert torch.equal(logits.argmax(-1), golden["argmax"].long())


@QUANT
def test_decode_token_by_token(golden_models, golden_case, quant):
    golden, model = golden_case("prefill_100_decode_40", quant), golden_models(quant)
    tokens = golden["tokens"].tolist()
    model.step(tokens, 0, 100, True)
    for position in range(100, 140):
        seen = {}
        logits = model.step(
            tokens,
            position,
            position + 1,
            False,
            padding=position % 3,
            probe=lambda name, layer, v, seen=seen: seen.__setitem__((name, layer), v),
        )
        assert_near(logits[0], golden["decode_logits"][position - 100], LIMIT[quant], position)
        assert_near(
            seen[("x_out", -1)][0], golden["decode_x_out"][position - 100], LIMIT[quant], position
        )
        for layer in model.file.config.index_source_layers:
            key = f"step{position}.topk.{layer}"
            if key in golden:
                ids = seen[("topk", layer)][0]
                expected = golden[key].flatten().long()
                assert torch.equal(ids[ids >= 0], expected[expected >= 0]), key


@QUANT
@pytest.mark.parametrize("start", [100, 101, 103])
def test_six_row_verify_batch_and_rollback(golden_models, golden_case, start, quant):
    golden, model = golden_case("prefill_100_decode_40", quant), golden_models(quant)
    tokens = golden["tokens"].tolist()
    model.step(tokens, 0, 100, True)
    for position in range(100, start):
        model.step(tokens, position, position + 1, False)
    wrong = [*tokens[: start + 1], *[(t + 7) % 320 for t in tokens[start + 1 : start + 6]]]
    model.step(wrong, start, start + 6, False)  # all but the first row are rejected afterwards
    for first in range(start, 136, 6):
        end = min(first + 6, 140)
        logits = model.step(tokens, first, end, False)
        expected = golden["decode_logits"][first - 100 : end - 100]
        assert_near(logits, expected, LIMIT[quant], f"rows {first} to {end}")


@QUANT
def test_cache_after_the_case(golden_models, golden_case, quant):
    golden, model, limit = golden_case("prefill_7", quant), golden_models(quant), LIMIT[quant]
    tokens = golden["tokens"].tolist()
    model.step(tokens, 0, 7, True)
    compared = 0
    for key, expected in golden.items():
        if not key.startswith("state."):
            continue
        kind, number = key[6:].split(".")
        layer = int(number)
        if kind in ("window", "draft_window"):
            ring = (model.state.window if kind == "window" else model.state.draft_window)[layer][1]
            value = ring[: expected.shape[0]].clone()  # positions 0 ... 6, slot 7 unused
        elif kind == "latent":
            value = model.state.latent[layer][1, : expected.shape[0]]
        elif kind == "index_k":
            value = model.state.index_key[layer][1, : expected.shape[0]]
        elif layer not in model.state.carry:
            assert expected.shape[0] == 0, key
            continue
        else:
            part = 0 if kind == "carry_kv" else 1
            value = model.state.carry[layer][1, 6:7, part]  # position 6 waits for its partner
        assert_near(value.cpu(), expected, limit, key)
        compared += 1
    assert compared >= 8 + 3 + 3 + 4 + 2


def test_sequences_in_one_step_do_not_see_each_other(golden_models, golden_case):
    golden, model = golden_case("prefill_100_decode_40", True), golden_models(True)
    tokens = golden["tokens"].tolist()
    model.step(tokens, 0, 100, True, slot=0)
    model.step(tokens, 0, 33, True, slot=1)
    with torch.inference_mode():
        a, b = model.inputs(tokens, 100, 102, 0), model.inputs(tokens, 33, 36, 1)
        joined = type(a)(
            torch.cat((a.token_ids, b.token_ids)),
            torch.cat((a.positions, b.positions)),
            torch.cat((a.slots, b.slots)),
            tuple(torch.cat(pair) for pair in zip(a.engram, b.engram, strict=True)),
        )
        shape = StepShape(prefill=False, context_bound=model.state.max_model_len)
        collapsed, _ = model.backbone(joined, model.state, shape)
        logits = model.backbone.logits(collapsed).cpu()
    assert_near(logits[:2], golden["decode_logits"][:2], LIMIT[True], "first sequence")
    whole = golden_case("prefill_64", True)["logits"]
    assert torch.equal(
        golden_case("prefill_64", True)["tokens"][:36].long(), torch.tensor(tokens[:36])
    )
    assert_near(logits[2:], whole[33:36], LIMIT[True], "second sequence")
