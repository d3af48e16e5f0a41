"""Cache quantisation: window FP8, latent FP4, index FP4."""

from ops.kv_quant.reference import fake_quant_index, fake_quant_latent, fake_quant_window

__all__ = ["fake_quant_index", "fake_quant_latent", "fake_quant_window"]
