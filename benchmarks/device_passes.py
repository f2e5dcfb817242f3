"""CPU time of the passes that place tensors, order delegates and place state, by nodes of a graph.

    python -m benchmarks device_passes [--most 32000]

Beside upstream's `PropagateDevicePass`, which only places. A row whose time has grown past a minute ends.
"""

from __future__ import annotations

import argparse
import copy
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.delegate_order_pass import DelegateOrderPass
from executorch.exir.passes.device_state_pass import DeviceStatePass
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.tensor import TensorSpec
from rich.console import Console
from rich.table import Table
from torch.fx import Graph, GraphModule, Node

from benchmarks.propagate_device_pass import PASS_MODULE, lowered_module
from torchtrt_executorch.overlay.upstream import load_upstream

ATEN = torch.ops.aten
SIZES = (2000, 4000, 8000, 16000, 32000)
LONGEST = 60.0  # seconds


class Line:
    """A graph that grows node by node, of CUDA delegates and host operators on tensors of one shape."""

    def __init__(self) -> None:
        self.owner, self.graph = torch.nn.Module(), Graph()
        self.owner.lowered = copy.copy(lowered_module("cuda:0", (4, 4)))
        self.owner.lowered._backend_id = "CudaBackend"
        self.value = torch.empty(4, 4)
        self.x = self._known(self.graph.placeholder("x"))

    def _known(self, node: Node) -> Node:
        node.meta.update(val=self.value, spec=TensorSpec.from_tensor(self.value))
        return node

    def call(self, target: Any, *args: Any) -> Node:
        return self._known(self.graph.call_function(target, args))

    def view(self, value: Node) -> Node:
        return self.call(ATEN.view_copy.default, value, [4, 4])

    def delegate(self, value: Node) -> Node:
        node = self.graph.call_function(
            executorch_call_delegate, (self.graph.get_attr("lowered"), value, value)
        )
        specs = [TensorSpec.from_tensor(self.value) for _ in range(2)]
        node.meta.update(val=[self.value] * 2, spec=specs)
        return self.call(operator.getitem, node, 0)

    def module(self, *outputs: Node) -> GraphModule:
        self.graph.output(outputs)
        return GraphModule(self.owner, self.graph)


def chain(line: Line, nodes: int) -> Sequence[Node]:
    """Host operators in a line, and a delegate that reads each of them."""
    value, read = line.x, line.x
    while len(line.graph.nodes) < nodes:
        value = line.call(ATEN.relu.default, value)
        read = line.delegate(value)
    return value, read


def fan(line: Line, nodes: int) -> Sequence[Node]:
    """Delegates that read one value of another delegate."""
    value, read = line.delegate(line.x), []
    while len(line.graph.nodes) < nodes:
        read.append(line.delegate(value))
    return read


def views(line: Line, nodes: int) -> Sequence[Node]:
    """Delegates in a line, each of which reads a view of the last one's output."""
    value = line.x
    while len(line.graph.nodes) < nodes:
        value = line.delegate(line.view(value))
    return (value,)


def fan_of_views(line: Line, nodes: int) -> Sequence[Node]:
    """Views of one value, each of which a delegate and the host read."""
    value, read = line.delegate(line.x), []
    while len(line.graph.nodes) < nodes:
        view = line.view(value)
        read += line.delegate(view), line.call(ATEN.relu.default, view)
    return read


def deep_views(line: Line, nodes: int) -> Sequence[Node]:
    """Views of views, each of which a delegate reads."""
    view, read = line.delegate(line.x), []
    while len(line.graph.nodes) < nodes:
        view = line.view(view)
        read.append(line.delegate(view))
    return read


GRAPHS: tuple[Callable[[Line, int], Sequence[Node]], ...] = (
    chain,
    fan,
    views,
    fan_of_views,
    deep_views,
)


def ours() -> list[Any]:
    placing = PropagateDevicePass(enable_non_cpu_memory_planning=True)
    return [DeviceStatePass(placing), placing, DelegateOrderPass(True)]


def upstreams() -> list[Any]:
    theirs = load_upstream(PASS_MODULE).PropagateDevicePass
    return [theirs(enable_non_cpu_memory_planning=True)]


def main(arguments: Sequence[str] = ()) -> None:
    """Prints a table with a row per graph and side."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=8000, help="nodes")
    most = parser.parse_args(arguments).most
    sizes = [size for size in SIZES if size <= most]
    table = Table("graph", "passes", title="Seconds of CPU time by nodes")
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    for build in GRAPHS:
        for name, passes in (("upstream's", upstreams), ("ours", ours)):
            row: list[str] = []
            taken = 0.0
            for size in sizes:
                if taken > LONGEST:
                    break
                line = Line()
                module = line.module(*build(line, size))
                started = time.process_time()
                for each in passes():
                    each(module)
                taken = time.process_time() - started
                row.append(f"{taken:.2f}")
            table.add_row(build.__name__.replace("_", " "), name, *row)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
