import torch

from ops.rope import apply_rope, inverse_frequencies, rope_table, yarn_inverse_frequencies

FREQUENCIES = {
    "window": lambda: inverse_frequencies(64, 10000.0),
    "compress": lambda: yarn_inverse_frequencies(64, 160000.0, 16.0, 65536, 32.0, 1.0),
}


def test_released_constants_match_golden(operators):
    for kind, frequencies in FREQUENCIES.items():
        inv_freq = frequencies()
        assert torch.equal(inv_freq, operators[f"rope.{kind}.inv_freq"]), kind
        cos, sin = rope_table(operators["rope.positions"], inv_freq)
        torch.testing.assert_close(cos, operators[f"rope.{kind}.cos"], atol=2e-7, rtol=0)
        torch.testing.assert_close(sin, operators[f"rope.{kind}.sin"], atol=2e-7, rtol=0)
        x = operators[f"rope.{kind}.in"]
        out = apply_rope(x, cos.unsqueeze(-2), sin.unsqueeze(-2))
        torch.testing.assert_close(out, operators[f"rope.{kind}.out"], atol=1e-6, rtol=0)


def test_inverse_undoes_and_leading_channels_pass():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(5, 2, 48, generator=g)
    positions = torch.randint(0, 1 << 20, (5,), generator=g)
    cos, sin = (t.unsqueeze(-2) for t in rope_table(positions, inverse_frequencies(16, 10000.0)))
    turned = apply_rope(x, cos, sin)
    assert torch.equal(turned[..., :32], x[..., :32])
    assert (turned[..., 32:] - x[..., 32:]).abs().max() > 0.1
    torch.testing.assert_close(apply_rope(turned, cos, sin, inverse=True), x, atol=1e-6, rtol=0)
