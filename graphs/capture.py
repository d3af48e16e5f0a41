"""Captures steps into CUDA graphs: one pool, one stream, largest bucket first.

A captured step has no arguments: it reads and writes static tensors whose addresses are frozen.
Graphs of one `GraphSet` share memory and never run at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.errors import CaptureError
from graphs.buckets import BucketTable

_WARM_UP_RUNS = 2


@dataclass(frozen=True)
class CaptureRecord:
    """What preparing one bucket cost."""

    bucket: int
    warm_up_s: float
    """Compilation and warm-up runs, seconds."""
    capture_s: float
    """Capture, seconds; 0 without CUDA graphs."""


class GraphSet:
    """Runs a step by bucket: replays its CUDA graph, or calls it where nothing is captured.

    Args:
        make_step: returns the step of a bucket, a function without arguments on static tensors.
        buckets: the sizes that exist.
        device: where the tensors are.
        capture: record CUDA graphs (needs a CUDA device).
    """

    def __init__(
        self,
        make_step: Callable[[int], Callable[[], None]],
        buckets: BucketTable,
        device: torch.device,
        capture: bool,
    ) -> None:
        self.buckets = buckets
        self.device = device
        self.capture = capture and device.type == "cuda"
        self.steps = {size: make_step(size) for size in buckets.sizes}
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.records: list[CaptureRecord] = []

    def prepare(self, progress: Callable[[str, float], None] | None = None) -> None:
        """Warm up every bucket (which compiles it) and capture it. Runs under inference mode.

        Raises:
            CaptureError: a bucket could not be captured; names it and the cause.
        """
        pool = torch.cuda.graph_pool_handle() if self.capture else None
        stream = torch.cuda.Stream(self.device) if self.capture else None
        order = list(self.buckets.capture_order())
        if progress is not None:
            progress("preparing steps", 0.0)
        for number, bucket in enumerate(order):
            start = time.perf_counter()
            step = self.steps[bucket]
            if stream is None:
                step()
                captured_at = time.perf_counter()
            else:
                # Warm up on the capture stream: lazily created handles belong to a stream.
                stream.wait_stream(torch.cuda.current_stream(self.device))
                with torch.cuda.stream(stream):
                    for _ in range(_WARM_UP_RUNS):
                        step()
                torch.cuda.current_stream(self.device).wait_stream(stream)
                torch.cuda.synchronize(self.device)
                captured_at = time.perf_counter()
                graph = torch.cuda.CUDAGraph()
                try:
                    with torch.cuda.graph(
                        graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                    ):
                        step()
                except RuntimeError as problem:
                    first_line = str(problem).partition("\n")[0]
                    raise CaptureError(
                        f"capturing the step with {bucket} rows: {first_line}; "
                        "run with --set cuda_graphs=off to go without"
                    ) from problem
                self.graphs[bucket] = graph
            end = time.perf_counter()
            captured = end - captured_at if stream is not None else 0.0
            self.records.append(CaptureRecord(bucket, captured_at - start, captured))
            if progress is not None:
                progress("preparing steps", (number + 1) / len(order))

    def run(self, bucket: int) -> None:
        """Run the step of `bucket` on the current stream."""
        graph = self.graphs.get(bucket)
        if graph is not None:
            graph.replay()
        else:
            self.steps[bucket]()

    def close(self) -> None:
        """Drop the graphs; their memory pool goes with the last of them."""
        self.graphs.clear()
