import pytest
import torch

from memory.capacity import free_bytes, parse_meminfo


def test_parse_meminfo():
    text = "MemTotal:       24000000 kB\nMemFree: 5 kB\nMemAvailable:   12345678 kB\n"
    assert parse_meminfo(text) == 12345678 * 1024
    assert parse_meminfo("MemTotal: 1 kB\n") is None


def test_this_host_has_something_left():
    free = free_bytes(torch.device("cpu"))
    assert free is not None and 2**20 < free < 2**50


@pytest.mark.gpu
def test_this_gpu_has_something_left():
    free = free_bytes(torch.device("cuda"))
    before = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert free is not None and free >= before.numel()
