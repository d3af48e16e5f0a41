import pytest
import torch

from ops.experts import ExpertWeights, clamped_swiglu, routed_experts


def test_swiglu_matches_golden(operators):
    out = clamped_swiglu(operators["swiglu.gate"], operators["swiglu.up"], 10.0)
    torch.testing.assert_close(out, operators["swiglu.out_limit10"], atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 8, 33, 200])
@pytest.mark.parametrize("skewed", [False, True])
def test_against_a_loop_in_float64(rows, skewed):
    g = torch.Generator().manual_seed(rows)
    d, f, e, k = 24, 12, 10, 3
    x = torch.randn(rows, d, generator=g)
    w1, w3 = (torch.randn(e, f, d, generator=g) * d**-0.5 for _ in range(2))
    w2 = torch.randn(e, d, f, generator=g) * f**-0.5
    scores = torch.randn(rows, e, generator=g)
    if skewed:
        scores[:, :k] += 100  # all rows to the same experts: others stay empty
    ids = scores.topk(k).indices
    weights = torch.rand(rows, k, generator=g)
    out = routed_experts(x, ids, weights, ExpertWeights(w1, w3, w2), 1.0)
    for t in range(rows):
        expected = torch.zeros(d, dtype=torch.float64)
        for j in range(k):
            i = int(ids[t, j])
            inner = clamped_swiglu(w1[i] @ x[t], w3[i] @ x[t], 1.0).double() * weights[t, j]
            expected += w2[i].double() @ inner
        torch.testing.assert_close(out[t].double(), expected, atol=1e-5, rtol=1e-5)
