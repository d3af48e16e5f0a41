"""Triton kernels of hyper-connections; imported only where Triton exists."""
