"""CUDA graphs: capture consecutive delegates on one GPU, and replay them.

A graph repeats the captured work: the same kernels at the same addresses. Planned values stay at one
address, or, like state whose allocations are swapped, at one of a few. Other values (the caller's inputs,
results) get memory of the graph's own, copied to before a launch. There is a graph for each set of input
shapes and addresses, captured at its second call: the first call runs without one, and initializes
everything.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Container, Mapping, Sequence

import torch

from torchtrt_executorch.runtime.delegates import DelegateCall
from torchtrt_executorch.runtime.tensors.devices import (
    CAPTURING,
    current_on,
    synchronize,
)
from torchtrt_executorch.runtime.tensors.values import Value

logger = logging.getLogger("torchtrt_executorch.runtime")

#: Graphs kept for each segment; the one that was not launched for longest goes first.
MAX_GRAPHS = 16


@dataclass(frozen=True)
class Graph:
    """A CUDA graph captured for one set of shapes.

    Attributes:
        inputs: Values that aren't planned, and the memory that the graph reads for them.
        results: Values that the graph writes, where it does, and with what shape.
    """

    graph: torch.cuda.CUDAGraph
    inputs: Sequence[tuple[Value, torch.Tensor]]
    results: Sequence[tuple[Value, torch.Tensor, torch.Size]]

    def launch(self) -> None:
        """Enqueue it on the current stream, on what the values are now."""
        for value, memory in self.inputs:
            memory.copy_(value.data)
        self.graph.replay()
        for value, memory, shape in self.results:
            if not value.planned:
                value.data = memory
            elif value.data.shape != shape:
                value.resize(shape)


class Segment:
    """Calls of delegates, one after another, on one GPU.

    ``allocators`` give values that aren't planned memory for one call, by their index.
    """

    def __init__(
        self,
        calls: Sequence[DelegateCall],
        allocators: Mapping[int, Callable[[], None]],
    ) -> None:
        # First, and so let go of first: a graph runs what the calls' delegates have loaded.
        self._graphs: OrderedDict[object, Graph] = OrderedDict()
        self._calls = calls
        tensors = {value.index: value for call in calls for value in call.args}
        self._moved = [v for v in tensors.values() if v.planned and not v.fixed]
        self._device = calls[0].delegate.device
        inputs: dict[int, Value] = {}
        outputs: dict[int, Value] = {}
        for call in calls:
            for value in call.args[: call.num_inputs]:
                if value.index not in outputs:
                    inputs[value.index] = value
            outputs.update((v.index, v) for v in call.args[call.num_inputs :])
        self._inputs = [*inputs.values()]
        #: The values that the calls write.
        self.outputs: Sequence[Value] = [*outputs.values()]
        self._allocators = [
            allocators[index] for index in outputs if index in allocators
        ]
        self._seen: set[object] = set()
        self._last_shapes: object = None
        self._refused = False

    def run(self) -> None:
        """Run the calls, as a graph if they ran with inputs of these shapes just before."""
        if (
            self._refused
            or torch.cuda.is_current_stream_capturing()  # into the caller's own graph
            or not all([value.data.is_cuda for value in self._inputs])
        ):
            self._run_each()
            return
        shapes = tuple([value.data.shape for value in self._inputs])
        key = shapes, *[value.data.data_ptr() for value in self._moved]
        graph = self._graphs.get(key)
        if graph is None:
            # Engines take up new shapes in an ordinary run, which a capture can't have.
            if shapes == self._last_shapes and key in self._seen:
                graph = self._captured()
            elif len(self._seen) == MAX_GRAPHS:
                self._seen.clear()
            self._seen.add(key)
        self._last_shapes = shapes
        if graph is None:
            self._run_each()
            return
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        if len(self._graphs) > MAX_GRAPHS:
            synchronize(self._device)  # it may still be running
            self._graphs.popitem(last=False)
        with current_on(self._device):
            graph.launch()

    def _captured(self) -> Graph | None:
        if not CAPTURING.acquire(blocking=False):
            return None  # the next call tries again
        try:
            return self._capture()
        except Exception as error:
            names = ", ".join(call.name for call in self._calls)
            logger.warning("%s can't be captured in a CUDA graph: %s", names, error)
            self._refused = True
            return None
        finally:
            CAPTURING.release()

    def _run_each(self) -> None:
        for value in self.outputs:
            if not value.planned and value not in self._inputs:
                value.data = None  # it may be a graph's memory
        for allocate in self._allocators:
            allocate()
        for call in self._calls:
            call.run()

    def _capture(self) -> Graph:
        rebindable = [
            value for value in self._inputs if not value.planned and not value.constant
        ]
        caller_tensors = [value.data for value in rebindable]
        for value in rebindable:
            value.data = torch.empty_strided(
                value.data.shape,
                value.data.stride(),
                dtype=value.data.dtype,
                device=value.data.device,
            )
        inputs = [(value, value.data) for value in rebindable]
        graph = torch.cuda.CUDAGraph()
        try:
            with current_on(self._device), _capture_into(graph):
                self._run_each()
            results = [(v, v.data, v.data.shape) for v in self.outputs]
        finally:
            for value, tensor in zip(rebindable, caller_tensors, strict=True):
                value.data = tensor
        return Graph(graph, inputs, results)


@contextmanager
def _capture_into(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what is enqueued within, as ``torch.cuda.graph`` does, and end the capture even if interrupted.

    A graph whose capture has not ended terminates the process when it is freed.
    """
    torch.cuda.synchronize()
    # Gives back the pools of graphs that are gone: each has one on the GPU, and 47 KiB for one on the host.
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        try:
            # Other threads go on allocating memory and asking for events meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            yield
        finally:
            graph.capture_end()


def why_not(call: DelegateCall) -> str | None:
    """Return why a delegate's call can't be part of a graph; None if it can."""
    for value in call.args:
        if value.layout is None:
            return f"{value.name} is a number, which a graph would keep"
    if call.delegate.device.type != "cuda":
        return "it is none of a GPU's"
    return call.delegate.not_capturable(call.args)


def find_segments(
    calls: Sequence[DelegateCall | None],
    destinations: Container[int],
    allocators: Mapping[int, Callable[[], None]],
) -> dict[range, Segment]:
    """Return what can be captured of a method's instructions, by their indices.

    ``calls`` has a delegate's call, or None, for each instruction; ``destinations`` the indices that
    jumps go to. ``allocators`` are :class:`Segment`'s. Says in the log what can't be captured, and why.
    """
    segments: dict[range, Segment] = {}
    reached: list[DelegateCall] = []
    for index, call in enumerate([*calls, None]):
        reason = None if call is None else why_not(call)
        if call is not None and reason is not None:
            logger.warning("%s is left out of CUDA graphs: %s", call.name, reason)
            call = None
        ends = call is None or index in destinations
        if reached and (ends or call.delegate.device != reached[0].delegate.device):  # type: ignore[union-attr]
            segments[range(index - len(reached), index)] = Segment(reached, allocators)
            reached = []
        if call is not None:
            reached.append(call)
    return segments
