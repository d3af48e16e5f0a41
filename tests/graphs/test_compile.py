import pytest
import torch

from engine.errors import CaptureError
from graphs.compile import clone_function, compile_step


def double(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def asks_the_host(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


def test_clones_have_code_objects_of_their_own():
    a, b = clone_function(double, "double_1"), clone_function(double, "double_2")
    assert a.__code__ is not b.__code__ and a.__name__ == "double_1"
    assert torch.equal(a(torch.ones(2)), torch.full((2,), 2.0))


def test_more_shapes_than_the_recompile_limit():
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in range(1, 13):
        step = compile_step(double, f"double_{rows}", backend="aot_eager")
        x = torch.randn(rows)
        for _ in range(2):
            assert torch.equal(step(x), x * 2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 12


def test_a_graph_break_is_an_error_that_names_the_step():
    step = compile_step(asks_the_host, "broken_step_3", backend="aot_eager")
    with pytest.raises(CaptureError, match=r"compiling broken_step_3: .*compiled_decode=off"):
        step(torch.ones(3))
