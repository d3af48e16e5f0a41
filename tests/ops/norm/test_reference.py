import torch

from ops.norm import rms_norm


def test_against_float64_and_zero_vector():
    g = torch.Generator().manual_seed(5)
    x, w = torch.randn(7, 33, generator=g), torch.randn(33, generator=g)
    expected = w.double() * x.double() / (x.double().square().mean(-1, keepdim=True)).sqrt()
    torch.testing.assert_close(rms_norm(x, w, 1e-20).double(), expected, atol=1e-5, rtol=1e-5)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        zero = rms_norm(torch.zeros(2, 33, dtype=dtype), w, 1e-20)
        assert zero.dtype is dtype and torch.equal(zero, torch.zeros_like(zero))
