"""What happens when a step goes wrong: only the requests in it end."""

import pytest
import torch

from engine.api import Engine
from engine.batch import describe_logprobs
from engine.config import EngineConfig
from engine.errors import ModelFileError
from engine.loading import load_model
from engine.pocket import model_path
from engine.request import FinishEvent, SamplingParams


@pytest.fixture
def fragile_engine():
    """An engine of its own, whose weights a test may damage."""
    config = EngineConfig(device="cpu", max_model_len=128, max_num_seqs=2, decode_buckets=(1, 2))
    loaded = load_model(model_path(), config)
    engine = Engine(loaded, config)
    yield engine, loaded.runner
    engine.close()


def run(engine, ids, **params):
    import queue

    events = queue.Queue()
    settings = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **params})
    engine.submit(ids, settings, events.put)
    seen = []
    while not seen or not isinstance(seen[-1], FinishEvent):
        seen.append(events.get(timeout=60))
    return seen


def test_not_finite_output_fails_the_request_and_the_next_one_works(fragile_engine):
    engine, runner = fragile_engine
    good = run(engine, [0, 5, 6, 7])
    healthy = runner.backbone.norm.clone()
    with torch.inference_mode():
        runner.backbone.norm.fill_(float("nan"))
    bad = run(engine, [0, 5, 6, 7])
    assert bad[-1].reason == "error" and "not finite" in bad[-1].message
    assert bad[-1].message.count("\n") == 0
    with torch.inference_mode():
        runner.backbone.norm.copy_(healthy)
    assert run(engine, [0, 5, 6, 7]) == good
    assert engine.stats().alive


def test_poisoned_cache_of_a_failed_request_does_not_reach_the_next(fragile_engine):
    engine, runner = fragile_engine
    good = run(engine, [0, 5, 6, 7])
    with torch.inference_mode():
        for ring in runner.state.window:
            ring.fill_(float("nan"))
        for rows in runner.state.latent.values():
            rows.fill_(float("nan"))
    assert run(engine, [0, 5, 6, 7]) == good


def test_an_exception_in_a_step_ends_its_request_only(fragile_engine):
    engine, runner = fragile_engine
    good = run(engine, [0, 5, 6, 7])
    head = runner.backbone.head
    runner.backbone.head = torch.nn.Parameter(torch.zeros(3, 3), requires_grad=False)
    bad = run(engine, [0, 5, 6, 7])
    assert bad[-1].reason == "error" and "RuntimeError" in bad[-1].message
    runner.backbone.head = head
    assert run(engine, [0, 5, 6, 7]) == good


class LostFile:
    """Stands in for a table whose file was cut while it was read."""

    def gather(self, rows):
        raise ModelFileError("model.gguf", "tensor per_layer_token_embd.weight", "read ended early")


def test_a_file_that_cannot_be_read_any_more_ends_the_request_only(fragile_engine):
    engine, runner = fragile_engine
    good = run(engine, [0, 5, 6, 7])
    table, hasher = runner.engram
    runner.engram = (LostFile(), hasher)
    bad = run(engine, [0, 5, 6, 7])
    assert bad[-1].reason == "error" and "read ended early" in bad[-1].message
    runner.engram = (table, hasher)
    assert run(engine, [0, 5, 6, 7]) == good


def test_describe_logprobs_against_float64():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)) * 4
    ids = torch.tensor([3, 49, 0])
    expected = torch.log_softmax(logits.double(), -1)
    for row, described in enumerate(describe_logprobs(logits, ids, 60)):
        assert described.logprob == pytest.approx(float(expected[row, ids[row]]), abs=1e-5)
        assert len(described.top) == 50, "never more than the vocabulary"
        values = [value for _, value in described.top]
        assert values == sorted(values, reverse=True)
