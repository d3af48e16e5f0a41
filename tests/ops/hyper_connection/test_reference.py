import torch

from ops.hyper_connection import collapse_streams, mix_weights, spread_output, stream_mix


def test_mix_matches_golden(operators):
    pre, post, comb = mix_weights(
        operators["sinkhorn.mixes"],
        operators["sinkhorn.scale"],
        operators["sinkhorn.base"],
        4,
        20,
        1e-6,
    )
    torch.testing.assert_close(pre, operators["sinkhorn.pre"], atol=1e-6, rtol=0)
    torch.testing.assert_close(post, operators["sinkhorn.post"], atol=1e-6, rtol=0)
    torch.testing.assert_close(comb, operators["sinkhorn.comb"], atol=2e-6, rtol=0)


def test_against_loops_in_float64():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(3, 4, 8, generator=g)
    fn, scale, base = (torch.randn(s, generator=g) for s in ((24, 32), (3,), (24,)))
    output = torch.randn(3, 8, generator=g)
    pre, post, c = stream_mix(x, fn, scale, base, 20, 1e-6, 1e-20)
    mixed = spread_output(x, output, post, c)
    for t in range(3):
        v = x[t].double().flatten()
        m = fn.double() @ v / (v.square().mean() + 1e-20).sqrt()
        expected_pre = torch.sigmoid(m[:4] * scale[0] + base[:4]) + 1e-6
        torch.testing.assert_close(pre[t].double(), expected_pre, atol=1e-6, rtol=1e-5)
        for j in range(4):
            row = post[t, j] * output[t] + sum(c[t, i, j] * x[t, i] for i in range(4))
            torch.testing.assert_close(mixed[t, j], row, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(c.sum(-2), torch.ones(3, 4), atol=1e-4, rtol=0)
    collapsed = collapse_streams(x, pre, torch.float32)
    torch.testing.assert_close(collapsed, torch.einsum("ts,tsd->td", pre, x), atol=1e-5, rtol=0)
