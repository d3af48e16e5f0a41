"""Device and float types for every kind of machine, given as arguments."""

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.precision import CudaSupport, resolve_device, resolve_precision

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NO_BUILD = CudaSupport(built=False, device_index=None)
NO_GPU = CudaSupport(built=True, device_index=None)
SECOND_GPU = CudaSupport(built=True, device_index=1)
VOLTA, TURING, AMPERE, HOPPER = (7, 0), (7, 5), (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("setting", "cuda", "expected"),
    [
        ("cpu", NO_BUILD, CPU),
        ("cpu", SECOND_GPU, CPU),
        ("auto", NO_BUILD, CPU),
        ("auto", NO_GPU, CPU),
        ("auto", SECOND_GPU, torch.device("cuda", 1)),
        ("cuda", SECOND_GPU, torch.device("cuda", 1)),
    ],
)
def test_device(setting, cuda, expected):
    assert resolve_device(EngineConfig(device=setting), cuda) == expected


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [(NO_BUILD, "this torch build has no CUDA support"), (NO_GPU, "no CUDA GPU is visible")],
)
def test_cuda_without_a_gpu_is_refused(cuda, reason):
    with pytest.raises(ConfigError) as caught:
        resolve_device(EngineConfig(device="cuda"), cuda)
    message = str(caught.value)
    assert "setting device" in message and reason in message and "--device cpu" in message
    assert "\n" not in message and caught.value.exit_code == 2


def test_this_machine_is_asked_by_default(device):
    config = EngineConfig(device=device)
    assert resolve_device(config).type == device
    precision = resolve_precision(config, resolve_device(config))
    # the chosen type works there: an inner product of ones is exact in every type
    ones = torch.ones(8, 8, dtype=precision.compute, device=device)
    assert torch.equal(ones @ ones, ones * 8)


@pytest.mark.parametrize(
    ("setting", "device", "capability", "compute", "residual"),
    [
        ("auto", CPU, None, torch.float32, torch.float32),
        ("auto", GPU, VOLTA, torch.float16, torch.float32),
        ("auto", GPU, TURING, torch.float16, torch.float32),
        ("auto", GPU, AMPERE, torch.bfloat16, torch.bfloat16),
        ("auto", GPU, HOPPER, torch.bfloat16, torch.bfloat16),
        ("float32", GPU, VOLTA, torch.float32, torch.float32),
        ("float32", GPU, HOPPER, torch.float32, torch.float32),
        ("float16", GPU, HOPPER, torch.float16, torch.float32),
        ("float16", CPU, None, torch.float16, torch.float32),
        ("bfloat16", CPU, None, torch.bfloat16, torch.bfloat16),
        ("bfloat16", GPU, AMPERE, torch.bfloat16, torch.bfloat16),
    ],
)
def test_types(setting, device, capability, compute, residual):
    precision = resolve_precision(EngineConfig(dtype=setting), device, capability)
    assert (precision.compute, precision.residual) == (compute, residual)


@pytest.mark.parametrize("capability", [VOLTA, TURING])
def test_bfloat16_on_an_old_gpu_is_refused(capability):
    with pytest.raises(ConfigError, match=r"setting dtype: .*float16 or float32"):
        resolve_precision(EngineConfig(dtype="bfloat16"), GPU, capability)


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("residual", ["float32", "bfloat16"])
def test_residual_setting_wins(dtype, residual):
    config = EngineConfig(dtype=dtype, residual_dtype=residual)
    found = resolve_precision(config, GPU, HOPPER)
    assert found.residual is getattr(torch, residual)
    assert found.compute is resolve_precision(EngineConfig(dtype=dtype), GPU, HOPPER).compute


def test_streams_are_never_float16():
    with pytest.raises(ConfigError, match="residual_dtype"):
        EngineConfig(residual_dtype="float16")
