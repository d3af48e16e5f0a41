"""The kernel in Triton's interpreter, and compiled for every supported architecture; no GPU."""

import os
import subprocess
import sys

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ops.hyper_connection.triton.sinkhorn import sinkhorn_kernel

INTERPRETED = """
import torch
from ops.hyper_connection.reference import sinkhorn
from ops.hyper_connection.triton.sinkhorn import sinkhorn_kernel
for rows in (1, 33):
    logits = torch.randn(rows, 4, 4) * 3
    out = torch.full_like(logits, float("nan"))
    sinkhorn_kernel[((rows + 15) // 16,)](logits, out, rows, 20, 1e-6, streams=4, block=16)
    torch.testing.assert_close(out, sinkhorn(logits, 20, 1e-6), atol=2e-6, rtol=1e-5)
print("equal")
"""


def test_interpreted_kernel_equals_the_reference():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.parametrize("capability", [70, 75, 80, 86, 90, 100, 120])
def test_compiles_for(capability):
    signature = {
        "source": "*fp32",
        "target": "*fp32",
        "num_rows": "i32",
        "iterations": "i32",
        "eps": "fp32",
        "streams": "constexpr",
        "block": "constexpr",
    }
    source = ASTSource(sinkhorn_kernel, signature, {"streams": 4, "block": 32})
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"enable_fp_fusion": True})
    assert compiled.asm["cubin"]
