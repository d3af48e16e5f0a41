import pytest
import torch

from ops.hyper_connection import sinkhorn
from ops.hyper_connection.reference import sinkhorn as sinkhorn_reference


@pytest.mark.parametrize("shape", [(5, 4, 4), (2, 3, 2, 2), (0, 4, 4)])
def test_opcheck_and_result(shape):
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    torch.library.opcheck(sinkhorn.default, (logits, 20, 1e-6))
    assert torch.equal(sinkhorn(logits, 20, 1e-6), sinkhorn_reference(logits, 20, 1e-6))


def test_not_contiguous_input():
    logits = torch.randn(4, 4, 6).permute(2, 1, 0)
    torch.library.opcheck(sinkhorn.default, (logits, 3, 1e-6))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 1000])
def test_kernel_against_the_reference(rows):
    logits = torch.randn(rows, 4, 4, device="cuda") * 3
    out = sinkhorn(logits, 20, 1e-6)
    expected = sinkhorn_reference(logits.double().cpu(), 20, 1e-6)
    torch.testing.assert_close(out.double().cpu(), expected, atol=2e-6, rtol=1e-5)
    torch.library.opcheck(sinkhorn.default, (logits, 20, 1e-6))
