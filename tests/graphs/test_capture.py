import pytest
import torch

from graphs.buckets import BucketTable
from graphs.capture import GraphSet


def make_counter(device: torch.device):
    x = torch.arange(8.0, device=device)
    out = torch.zeros(8, device=device)
    calls: list[int] = []

    def make_step(bucket: int):
        def step() -> None:
            calls.append(bucket)
            out[:bucket].copy_(x[:bucket] * 2)

        return step

    return x, out, calls, make_step


def test_without_cuda_every_run_calls_the_step():
    device = torch.device("cpu")
    x, out, calls, make_step = make_counter(device)
    graphs = GraphSet(make_step, BucketTable((1, 4)), device, capture=True)
    seen: list[tuple[str, float]] = []
    graphs.prepare(lambda stage, done: seen.append((stage, done)))
    assert calls == [4, 1], "largest bucket first"
    assert [r.bucket for r in graphs.records] == [4, 1]
    assert all(r.capture_s == 0 and r.warm_up_s >= 0 for r in graphs.records)
    assert seen[-1] == ("preparing steps", 1.0)
    x.fill_(3)
    graphs.run(4)
    assert out.tolist() == [6.0] * 4 + [0.0] * 4


@pytest.mark.gpu
def test_replay_sees_new_inputs_and_does_not_call():
    device = torch.device("cuda")
    x, out, calls, make_step = make_counter(device)
    graphs = GraphSet(make_step, BucketTable((1, 4)), device, capture=True)
    graphs.prepare()
    count = len(calls)
    x.fill_(3)
    out.zero_()
    graphs.run(4)
    torch.cuda.synchronize()
    assert out.tolist() == [6.0] * 4 + [0.0] * 4
    assert len(calls) == count and set(graphs.graphs) == {1, 4}
    graphs.close()
