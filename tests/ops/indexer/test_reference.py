import torch

from ops.indexer import index_scores


def test_against_loops_with_signed_weights_and_relu():
    g = torch.Generator().manual_seed(9)
    t, i, c, n = 4, 3, 8, 10
    queries, keys = torch.randn(t, i, c, generator=g), torch.randn(n, c, generator=g)
    weights = torch.randn(t, i, generator=g)
    visible = torch.tensor([0, 1, 7, 10])
    out = index_scores(queries, weights, keys, visible)
    own = index_scores(queries, weights, keys.expand(t, n, c), visible)
    for row in range(t):
        for g_row in range(n):
            if g_row >= visible[row]:
                assert out[row, g_row] == own[row, g_row] == float("-inf")
                continue
            expected = sum(
                float(weights[row, h]) * max(0.0, float(queries[row, h] @ keys[g_row]))
                for h in range(i)
            )
            assert abs(float(out[row, g_row]) - expected) < 1e-4
            assert abs(float(own[row, g_row]) - expected) < 1e-4
