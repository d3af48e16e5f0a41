import torch

from ops.compressor import pool_pair


def test_channelwise_softmax_of_two():
    g = torch.Generator().manual_seed(10)
    v0, s0, v1, s1 = (torch.randn(6, 5, generator=g) * 4 for _ in range(4))
    a = torch.sigmoid(s0.double() - s1.double())
    expected = a * v0 + (1 - a) * v1
    torch.testing.assert_close(pool_pair(v0, s0, v1, s1).double(), expected, atol=1e-5, rtol=1e-5)
