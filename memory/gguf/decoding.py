"""Decode blocks with `memory.gguf.blocks`, or with the gguf package while that is absent."""

import torch

try:
    from memory.gguf.blocks import SUPPORTED, dequantize
except ImportError:
    import gguf

    from memory.gguf.format import BLOCKS

    SUPPORTED = tuple(BLOCKS)

    def dequantize(
        raw: torch.Tensor, quant_type: str, out_dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Decode stored rows on the CPU."""
        values = gguf.quants.dequantize(raw.cpu().numpy(), gguf.GGMLQuantizationType[quant_type])
        return torch.from_numpy(values.astype("float32")).to(raw.device, out_dtype)
