"""Time kernels on a GPU with CUDA graphs, independently of the host's load."""

from __future__ import annotations

import fcntl
import functools
from collections.abc import Callable
from typing import Any

import torch

from torchtrt_executorch.nogpu.tuning.problem import DEVICE

#: Calls of a kernel in a timed CUDA graph, and replays of it, of which the fastest counts.
_CALLS, _REPLAYS = 10, 5
#: Microseconds of an empty kernel, at the least.
_LEAST = 0.5


def in_turn(
    turn: str, timed: Callable[[Callable[[], Any]], float] | None = None
) -> None:
    """Serialize this process's timing of kernels with others that are given the same file.

    Args:
        turn: The file.
        timed: Returns the microseconds of a call; in place of Inductor's own.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    kind: Any = type(benchmarker)
    benchmark = kind.benchmark_gpu

    @functools.wraps(benchmark)
    def exclusive(
        self: Any, function: Callable[[], Any], *args: Any, **kwargs: Any
    ) -> Any:
        with open(turn, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if timed is not None:
                return timed(function) / 1e3
            return benchmark(self, function, *args, **kwargs)

    kind.benchmark_gpu = exclusive


def microseconds(function: Callable[[], Any]) -> float:
    """Return the microseconds of a call on the GPU, after one that clears its L2 cache.

    Both are replayed as a CUDA graph, many at once: a host whose processors are busy compiling launches now and then too late, which
    makes one kernel in ten seem slower by half.

    Args:
        function: Launches on the current stream, which isn't the default one.

    Raises:
        RuntimeError: It launched nothing there.
    """
    function()
    full, empty = _graph(function), _graph(lambda: None)
    times = [min(_replayed(graph) for _ in range(_REPLAYS)) for graph in (full, empty)]
    if times[0] - times[1] < _LEAST:
        raise RuntimeError(
            "a kernel was launched on another stream than the current one"
        )
    return times[0] - times[1]


def _graph(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Return ``_CALLS`` calls as a graph, captured without garbage collection, which takes longer than to time a kernel."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        other = torch.empty(2 * cache, dtype=torch.int8, device=DEVICE)
        for _ in range(_CALLS):
            other.zero_()
            function()
    finally:
        graph.capture_end()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    """Return microseconds of one of a graph's calls."""
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / _CALLS
