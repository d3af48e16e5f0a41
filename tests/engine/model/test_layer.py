"""Layers run alone: golden layers from their golden inputs, and the wiring in float64."""

import math

import pytest
import torch

from engine.model.context import make_context
from engine.model.inputs import StepShape
from engine.model.layer import BackboneLayer, HyperLayer, StreamMixer
from engine.model.precision import Precision

LIMIT = {False: 1e-4, True: 5e-4}
FLOAT32 = Precision(compute=torch.float32, residual=torch.float32)


def leave_behind(model, golden, ctx, layer):
    """Put into cache and context what the sources before `layer` would have left there."""
    config, state = model.file.config, model.state
    if not config.compress_ratios[layer]:
        return
    source, chooser = config.kv_source(layer), config.index_source(layer)
    if source != layer:
        for cache, name in ((state.latent, "latent"), (state.index_key, "index_k")):
            rows = golden[f"state.{name}.{source}"]
            cache[source][1, : len(rows)] = rows.to(model.device)
    if chooser != layer:
        ctx.selected = golden[f"topk.{chooser}"].long().to(model.device)
    if layer > config.candidate_source_layer:
        candidates = golden[f"candidates.{config.candidate_source_layer}"]
        ctx.candidates = candidates.bool().to(model.device)


@pytest.mark.parametrize("layer", range(8))
@pytest.mark.parametrize(
    ("case", "quant"), [("prefill_7", False), ("prefill_7", True), ("prefill_64", True)]
)
def test_golden_layer_alone(golden_models, golden_case, layer, case, quant):
    """All inputs of the layer are golden, so that no other layer hides or causes an error."""
    model, golden = golden_models(quant), golden_case(case, quant)
    config, tokens, heard = model.file.config, golden["tokens"].tolist(), {}
    length = len(tokens)
    assert golden["positions"].tolist() == list(range(length))
    with torch.inference_mode():
        ctx = make_context(
            model.inputs(tokens, 0, length, 1),
            StepShape(prefill=True, context_bound=length, tile_rows=24),
            model.state.scratch_slot,
            model.backbone.window_frequencies,
            model.backbone.compress_frequencies,
            lambda name, layer, value: heard.__setitem__(name, value.cpu()),
        )
        leave_behind(model, golden, ctx, layer)
        first = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(length, -1)
        x, _ = model.backbone.layers[layer](
            golden[f"x_in.{layer}"].to(model.device),
            (golden[f"pre_out.{layer - 1}"] if layer else first).to(model.device),
            ctx,
            model.state,
        )
        if layer < 7:  # the next layer's golden input holds its n-gram memory already
            x = model.backbone.layers[layer + 1].add_engram(x, ctx)
    heard["x"] = x.cpu()
    expected = {"x": golden[f"x_in.{layer + 1}" if layer < 7 else "x_out"]}
    for name in ("pre_out", "window_kv", "attn_in", "attn_out", "ffn_in", "ffn_out"):
        expected[name] = golden[f"{name}.{layer}"]
    for name, value in expected.items():
        difference = (heard[name][-len(value) :] - value).abs().max().item()
        assert difference <= LIMIT[quant], f"{name}: {difference:.2e}"
    ids = heard["expert_ids"].sort(-1).values
    assert torch.equal(ids, golden[f"expert_ids.{layer}"].long().sort(-1).values)
    if layer in config.index_source_layers:
        chosen = golden[f"topk.{layer}"][:, : heard["topk"].shape[1]]
        assert torch.equal(heard["topk"], chosen.long())


def slow_mix(mixer, streams):
    """Collapse [H], spread [H] and matrix [H][H] of one token, float64."""
    config, h = mixer.config, mixer.config.hc_streams
    fn, base, scale = (p.double().cpu() for p in (mixer.fn, mixer.base, mixer.scale))
    flat = streams.flatten()
    m = (fn @ flat) / math.sqrt(float(flat.square().mean()) + config.norm_eps)
    collapse = [1 / (1 + math.exp(-(m[i] * scale[0] + base[i]))) + config.hc_eps for i in range(h)]
    spread = [2 / (1 + math.exp(-(m[h + i] * scale[1] + base[h + i]))) for i in range(h)]
    logits = (m[2 * h :] * scale[2] + base[2 * h :]).view(h, h)
    c = logits.exp() / logits.exp().sum(1, keepdim=True) + config.hc_eps
    c = c / (c.sum(0) + config.hc_eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        c = c / (c.sum(1, keepdim=True) + config.hc_eps)
        c = c / (c.sum(0) + config.hc_eps)
    return torch.tensor(collapse, dtype=torch.float64), spread, c


def slow_sublayer(mixer, norm, x, collapse, sublayer):
    """One sub-layer on streams [T, H, D]; `sublayer` maps normalised rows [T, D]."""
    mixes = [slow_mix(mixer, token) for token in x]
    y = torch.stack([weights @ token for weights, token in zip(collapse, x, strict=True)])
    y = norm.double().cpu() * y / y.square().mean(-1, keepdim=True).sqrt()
    out = sublayer(y)
    streams = torch.zeros_like(x)
    for t, (_, spread, matrix) in enumerate(mixes):
        for j in range(x.shape[1]):
            streams[t, j] = spread[j] * out[t]
            for i in range(x.shape[1]):
                streams[t, j] += matrix[i, j] * x[t, i]
    return streams, torch.stack([mix[0] for mix in mixes])


def test_collapse_weights_act_one_sublayer_later(small_config, randomise, make_step, device):
    layer = randomise(HyperLayer(small_config, 2, FLOAT32), 70, device)
    g = torch.Generator().manual_seed(71)
    x = torch.randn(5, small_config.hc_streams, small_config.hidden_size, generator=g)
    collapse = torch.rand(5, small_config.hc_streams, generator=g)
    square = torch.randn(small_config.hidden_size, small_config.hidden_size, generator=g) / 6
    ctx = make_step(range(5), 0, prefill=True, device=device)
    out, following = layer.run(
        x.to(device), collapse.to(device), lambda a: a @ square.to(device), ctx
    )
    streams, own = slow_sublayer(
        layer.attention_mixer,
        layer.attention_norm,
        x.double(),
        collapse.double(),
        lambda a: a @ square.double(),
    )
    expected, last = slow_sublayer(
        layer.ffn_mixer,
        layer.ffn_norm,
        streams,
        own,
        lambda a: layer.moe(a.float().to(device), ctx).double().cpu(),
    )
    torch.testing.assert_close(out.double().cpu(), expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(following.double().cpu(), last, atol=2e-5, rtol=0)


def test_mixer_in_float64(small_config, randomise, device):
    mixer = randomise(StreamMixer(small_config), 72, device)
    g = torch.Generator().manual_seed(73)
    x = torch.randn(6, small_config.hc_streams, small_config.hidden_size, generator=g)
    collapse, spread, matrix = (value.double().cpu() for value in mixer(x.to(device)))
    for token in range(6):
        expected = slow_mix(mixer, x[token].double())
        torch.testing.assert_close(collapse[token], expected[0], atol=1e-5, rtol=0)
        assert spread[token].tolist() == pytest.approx(expected[1], abs=1e-5)
        torch.testing.assert_close(matrix[token], expected[2], atol=1e-5, rtol=0)


def test_types_of_streams_and_sublayers(small_config, randomise, make_step):
    precision = Precision(compute=torch.float16, residual=torch.bfloat16)
    layer = randomise(HyperLayer(small_config, 2, precision), 74)
    g = torch.Generator().manual_seed(75)
    x = torch.randn(3, small_config.hc_streams, small_config.hidden_size, generator=g)
    seen = []
    out, following = layer.run(
        x.bfloat16(),
        torch.rand(3, small_config.hc_streams, generator=g),
        lambda a: (seen.append(a.dtype), a)[1],
        make_step(range(3), 0, prefill=True),
    )
    assert (seen, out.dtype, following.dtype) == ([torch.float16], torch.bfloat16, torch.float32)
    assert torch.isfinite(out).all()


def test_what_a_layer_owns_follows_from_its_place(small_config):
    layers = [BackboneLayer(small_config, i, FLOAT32, False) for i in range(5)]
    assert [layer.compressor is not None for layer in layers] == [False, True, False, True, False]
    assert [layer.indexer is not None for layer in layers] == [False, True, False, True, True]
    assert [layer.engram_index for layer in layers] == [-1, 0, -1, 1, -1]
    assert [layer.attention.source for layer in layers] == [None, 1, 1, 3, 3]


def test_engram_rows_of_the_right_layer_are_added(small_config, randomise, make_step):
    g = torch.Generator().manual_seed(76)
    x = torch.randn(4, small_config.hc_streams, small_config.hidden_size, generator=g)
    rows = tuple(torch.randn(4, small_config.engram.width, generator=g) for _ in range(2))
    ctx = make_step(range(4), 0, prefill=True, engram=rows)
    for number, index in ((1, 0), (3, 1)):
        layer = randomise(BackboneLayer(small_config, number, FLOAT32, False), 77)
        expected = layer.engram(x, rows[index], ctx, number)
        assert torch.equal(layer.add_engram(x, ctx), expected)
        assert not torch.equal(expected, layer.engram(x, rows[1 - index], ctx, number))
    assert BackboneLayer(small_config, 2, FLOAT32, False).add_engram(x, ctx) is x
