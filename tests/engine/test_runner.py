"""Decode steps through the runner: padding, buckets, compilation."""

import math
import re

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.loading import make_runner
from engine.model.inputs import StepInputs, StepShape
from engine.model.precision import DTYPES, Precision
from engine.runner import RowGroup, decode_step
from graphs.compile import compile_step
from memory.gguf import open_model
from memory.gguf.maker import make_random

TOKENS = [int(t) for t in torch.randint(3, 600, (60,), generator=torch.Generator().manual_seed(1))]


@pytest.fixture(scope="module")
def small_model(four_layer_config, tmp_path_factory):
    """Four layers of narrow rows."""
    config = four_layer_config(
        hidden_size=64,
        moe_intermediate_size=32,
        head_dim=64,
        qk_rope_head_dim=16,
        index_head_dim=32,
        q_lora_rank=32,
        engram_head_dim=32,
    )
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    make_random(config, path, seed=3, damp=0.3)
    return path


def build(path, device="cpu", **settings):
    # Without cache rounding, whose steps may fall the other way when sums are ordered differently.
    defaults = {"max_model_len": 2048, "max_num_seqs": 2, "kv_fake_quant": False}
    config = EngineConfig(**{"device": device, **defaults, **settings})
    compute = DTYPES["float32" if config.dtype == "auto" else config.dtype]
    precision = Precision(compute=compute, residual=torch.float32)
    return make_runner(open_model(path), config, precision, torch.device(device))


def decode_all(runner, slot, start, end, rows):
    return torch.cat(
        [
            runner.decode([RowGroup(slot, TOKENS, p, min(p + rows, end))]).cpu().clone()
            for p in range(start, end, rows)
        ]
    )


def test_padded_buckets_equal_exact_ones(small_model):
    padded = build(small_model, decode_buckets=(8,))
    exact = build(small_model, decode_buckets=(1, 3))
    for runner in (padded, exact):
        runner.prepare()
        runner.prefill(1, TOKENS, 0, 31)
    one, other = decode_all(padded, 1, 31, 60, 3), decode_all(exact, 1, 31, 60, 3)
    torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
    assert torch.isfinite(one).all() and one.std() > 0.01


def test_two_sequences_in_one_step_equal_two_steps(small_model):
    runner = build(small_model, decode_buckets=(3, 5))
    for slot, length in ((0, 20), (1, 41)):
        runner.prefill(slot, TOKENS, 0, length)
    groups = [RowGroup(0, TOKENS, 20, 22), RowGroup(1, TOKENS, 41, 44)]
    together = runner.decode(groups).clone()
    apart = torch.cat([runner.decode([group]).clone() for group in groups])
    torch.testing.assert_close(together, apart, atol=2e-5, rtol=0)


def test_too_many_rows_are_refused(small_model):
    runner = build(small_model, decode_buckets=(1, 2))
    with pytest.raises(ConfigError, match="3 rows exceed"):
        runner.decode([RowGroup(0, TOKENS, 0, 3)])


def test_the_decode_step_is_one_graph_that_never_recompiles(small_model):
    runner = build(small_model)
    torch._dynamo.reset()
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    step = compile_step(decode_step, "one_graph_2", backend="aot_eager")
    shape = StepShape(prefill=False, context_bound=2048)
    with torch.inference_mode():
        for start in (0, 2, 4):
            inputs = StepInputs(
                torch.tensor(TOKENS[start : start + 2]),
                torch.arange(start, start + 2),
                torch.tensor([1, 1]),
                tuple(runner.gather_engram(TOKENS, start, start + 2)),
            )
            logits, _ = step(runner.backbone, inputs, runner.state, shape)
            expected = runner.decode([RowGroup(0, TOKENS, start, start + 2)])
            torch.testing.assert_close(logits, expected, atol=2e-5, rtol=0)
    assert stats["unique_graphs"] - before == 1


@pytest.mark.slow
def test_inductor_equals_eager_and_copies_no_cache(small_model):
    eager = build(small_model, decode_buckets=(1,))
    runner = build(small_model, decode_buckets=(1,))
    torch._dynamo.reset()
    inputs = StepInputs(
        torch.tensor(TOKENS[:1]),
        torch.tensor([0]),
        torch.tensor([1]),
        tuple(runner.gather_engram(TOKENS, 0, 1)),
    )
    shape = StepShape(prefill=False, context_bound=2048)
    compiled = torch.compile(decode_step, fullgraph=True, dynamic=False)
    with torch.inference_mode():
        (logits, _), sources = torch._inductor.utils.run_and_get_code(
            compiled, runner.backbone, inputs, runner.state, shape
        )
        expected = eager.decode([RowGroup(1, TOKENS, 0, 1)])
    torch.testing.assert_close(logits, expected, atol=5e-5, rtol=0)
    shapes = [
        tuple(int(n) for n in dims.split(",") if n.strip())
        for source in sources
        for dims in re.findall(r"empty_strided\w*\(\(([\d, ]+)\)", source)
    ]
    state = runner.state
    growing = [*state.latent.values(), *state.index_key.values()]
    assert len(shapes) > 10
    assert max(math.prod(shape) for shape in shapes) < min(t.numel() for t in growing)
    assert not set(shapes) & {tuple(t.shape) for t in (*growing, *state.window)}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_steps_equal_compiled_and_eager_ones(small_model, dtype):
    settings = {
        "device": "cuda",
        "dtype": dtype,
        "decode_buckets": (1, 4),
    }
    captured = build(small_model, **settings)
    compiled = build(small_model, **settings, cuda_graphs="off")
    eager = build(small_model, **settings, compiled_decode="off", cuda_graphs="off")
    for runner in (captured, compiled, eager):
        runner.prepare()
        runner.prefill(1, TOKENS, 0, 31)
    assert set(captured.graphs.graphs) == {1, 4} and not compiled.graphs.graphs
    junk = [torch.randn(1 << 20, device="cuda") for _ in range(8)]  # allocator noise after capture
    del junk
    for start, end, rows in ((31, 60, 3), (40, 50, 1)):
        one, two, three = (
            decode_all(runner, 1, start, end, rows) for runner in (captured, compiled, eager)
        )
        assert torch.isfinite(one).all()
        assert torch.equal(one, two), f"capture changed {(one != two).sum()} logits"
        if dtype == "float32":  # in 16 bits fused kernels round less often, and choices may flip
            torch.testing.assert_close(one, three, atol=2e-4, rtol=0)
    assert [record.bucket for record in captured.graphs.records] == [4, 1]
