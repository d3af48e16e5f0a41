import pytest
import torch

from ops.library import NAMESPACE, define_op


def test_an_op_is_callable_traced_by_its_fake_and_passes_opcheck():
    op = define_op(
        "test_scaled(Tensor x, float factor) -> Tensor",
        reference=lambda x, factor: x * factor,
        fake=lambda x, factor: torch.empty_like(x),
    )
    x = torch.randn(3, 4)
    assert torch.equal(op(x, 2.0), x * 2)
    assert torch.equal(getattr(torch.ops, NAMESPACE).test_scaled(x, 2.0), x * 2)
    torch.library.opcheck(op.default, (x, 2.0))


def test_a_wrong_fake_is_caught():
    op = define_op(
        "test_wrong_fake(Tensor x) -> Tensor",
        reference=lambda x: x + 1,
        fake=lambda x: x.new_empty(x.shape[::-1]),
    )
    with pytest.raises(torch.testing._internal.optests.generate_tests.OpCheckError):
        torch.library.opcheck(op.default, (torch.randn(2, 3),))
