from __future__ import annotations

import pytest
import torch

from engine.request import SamplingParams
from engine.sampler import record_tokens, sample, sample_greedy, token_logprobs, uniform_for
from engine.sampling_state import SamplingInputs, SamplingState


@pytest.mark.gpu
def test_captured_graph_equals_cpu() -> None:
    """One captured graph, replayed with new parameters and logits, gives the CPU's tokens."""
    rows, vocab, steps = 6, 5_000, 20
    generator = torch.Generator().manual_seed(4)
    params = [
        SamplingParams(max_tokens=99, temperature=0.0, repetition_penalty=1.2),
        SamplingParams(max_tokens=99, temperature=0.8, top_p=0.9),
        SamplingParams(max_tokens=99, temperature=1.0, top_k=40, frequency_penalty=0.5),
        SamplingParams(max_tokens=99, temperature=1.0, min_p=0.05, logit_bias={3: 4.0}),
        SamplingParams(max_tokens=99, temperature=1.5, min_tokens=10, presence_penalty=1.0),
    ]
    states = {
        device: SamplingState(rows, vocab, suppressed_ids=[7], device=device)
        for device in ("cpu", "cuda")
    }
    for state in states.values():
        for slot, p in enumerate(params):
            state.start(slot, p, prompt_ids=range(0, vocab, 9), stop_ids=range(20))
    host = SamplingInputs.allocate(rows, spare_slot=rows - 1, pin_memory=True)
    inputs = SamplingInputs.allocate(rows, "cuda", spare_slot=rows - 1)
    logits = torch.zeros(rows, vocab, device="cuda")

    def step() -> tuple[torch.Tensor, ...]:
        ids, ok = sample(logits, inputs, states["cuda"])
        record_tokens(ids, inputs, states["cuda"])
        return ids, ok, *sample_greedy(logits, states["cuda"]), *token_logprobs(logits, ids, 5)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        stream.synchronize()
        states["cuda"].output_counts.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = step()
        states["cuda"].output_counts.zero_()
        for number in range(steps):
            fresh = torch.randn(rows, vocab, generator=generator) * 3
            if number == 5:
                fresh[1, 17] = torch.nan
            for row, p in enumerate(params):
                draw = uniform_for(row, number)
                host.set_row(row, p, slot=row, uniform=draw, num_generated=number)
            inputs.copy_from(host)
            logits.copy_(fresh)
            graph.replay()
            stream.synchronize()
            ids, ok = sample(fresh, host, states["cpu"])
            record_tokens(ids, host, states["cpu"])
            expected = (
                ids,
                ok,
                *sample_greedy(fresh, states["cpu"]),
                *token_logprobs(fresh, ids, 5),
            )
            good = expected[1]
            for got, wanted in zip(outputs, expected, strict=True):
                torch.testing.assert_close(got.cpu()[good], wanted[good], rtol=1e-5, atol=1e-5)
            assert outputs[1].tolist() == ok.tolist()
    assert torch.equal(states["cuda"].output_counts.cpu(), states["cpu"].output_counts)
