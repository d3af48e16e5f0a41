import torch

from ops.attention import sink_attention


def slow(q, entries, mask, sink, scale):
    out = torch.zeros_like(q, dtype=torch.float64)
    for a in range(q.shape[0]):
        z = torch.tensor([float(q[a] @ e) * scale for e in entries], dtype=torch.float64)
        weights = torch.where(mask, z.exp(), 0.0)
        total = weights.sum() + sink[a].double().exp()
        out[a] = (weights[:, None] * entries.double()).sum(0) / total
    return out


def test_against_a_loop_in_float64_and_shared_window():
    g = torch.Generator().manual_seed(8)
    t, a, c, e, k = 5, 3, 16, 7, 4
    q, sink = torch.randn(t, a, c, generator=g), torch.randn(a, generator=g)
    shared, selected = torch.randn(e, c, generator=g), torch.randn(t, k, c, generator=g)
    mask_w = torch.rand(t, e, generator=g) < 0.6
    mask_s = torch.rand(t, k, generator=g) < 0.6
    out = sink_attention(q, shared, mask_w, selected, mask_s, sink, 0.25)
    own = shared.expand(t, e, c).contiguous()
    per_row = sink_attention(q, own, mask_w, selected, mask_s, sink, 0.25)
    torch.testing.assert_close(out, per_row, atol=1e-6, rtol=1e-6)
    for i in range(t):
        entries = torch.cat((shared, selected[i]))
        expected = slow(q[i], entries, torch.cat((mask_w[i], mask_s[i])), sink, 0.25)
        torch.testing.assert_close(out[i].double(), expected, atol=1e-5, rtol=1e-5)


def test_nothing_visible_gives_zeros_and_large_scores_stay_finite():
    q = torch.full((1, 2, 4), 100.0)
    window = torch.full((3, 4), 100.0)
    blind = torch.zeros(1, 3, dtype=torch.bool)
    none = sink_attention(q, window, blind, None, None, torch.zeros(2), 1.0)
    assert torch.equal(none, torch.zeros(1, 2, 4))
    low = sink_attention(q, -window, ~blind, None, None, torch.full((2,), -1e4), 1.0)
    assert torch.isfinite(low).all()
    high = sink_attention(q, window, ~blind, None, None, torch.full((2,), 50.0), 1.0)
    torch.testing.assert_close(high, torch.full((1, 2, 4), 100.0))
