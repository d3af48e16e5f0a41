import pytest
import torch

from ops.kv_quant import reference as kv


def test_window_codes_and_scales_match_golden(operators):
    values, exponent = kv.window_quant(operators["quant.x"])
    assert torch.equal(exponent.to(torch.uint8), operators["quant.fp8_g32.scale_e8m0"])
    codes = kv.encode_e4m3(values).flatten(-2)
    assert torch.equal(codes, operators["quant.fp8_g32.codes"])
    decoded = kv.fake_quant_window(operators["quant.x"])
    assert torch.equal(decoded, operators["quant.fp8_g32.dequant"])


def test_latent_codes_and_scales_match_golden(operators):
    values, scale = kv.latent_quant(operators["quant.x"])
    assert torch.equal(kv.encode_e4m3(scale), operators["quant.fp4_g16.scale_e4m3"])
    assert torch.equal(kv.encode_e2m1(values).flatten(-2), operators["quant.fp4_g16.codes"])
    decoded = kv.fake_quant_latent(operators["quant.x"])
    assert torch.equal(decoded, operators["quant.fp4_g16.dequant"])


def test_index_codes_and_scales_match_golden(operators):
    values, exponent = kv.index_quant(operators["quant.x"])
    assert torch.equal(exponent.to(torch.uint8), operators["quant.fp4_g32.scale_e8m0"])
    assert torch.equal(kv.encode_e2m1(values).flatten(-2), operators["quant.fp4_g32.codes"])
    decoded = kv.fake_quant_index(operators["quant.x"])
    assert torch.equal(decoded, operators["quant.fp4_g32.dequant"])


def test_e4m3_rounding_equals_the_hardware_type():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(20000, generator=g) * torch.exp2(torch.randint(-14, 9, (20000,), generator=g))
    x = x.clamp(-448, 448)
    expected = x.to(torch.float8_e4m3fn)
    assert torch.equal(kv.round_e4m3(x), expected.float())
    assert torch.equal(kv.encode_e4m3(kv.round_e4m3(x)), expected.view(torch.uint8))


@pytest.mark.parametrize(
    "function", [kv.fake_quant_window, kv.fake_quant_latent, kv.fake_quant_index]
)
def test_round_trip_is_exact_in_bfloat16_and_idempotent(function):
    x = torch.randn(16, 128, generator=torch.Generator().manual_seed(2)) * 3
    once = function(x)
    assert torch.equal(once.bfloat16().float(), once)
    assert torch.equal(function(once), once)
    assert (once - x).abs().max() < x.abs().max() / 4
