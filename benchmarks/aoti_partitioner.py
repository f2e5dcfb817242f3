"""Time to partition graphs of growing size: upstream's AOTI partitioner and ours."""

from __future__ import annotations

import operator
import time
import warnings
from typing import Any

import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir.delegate import executorch_call_delegate
from rich.console import Console
from rich.table import Table
from torch.export import ExportedProgram, export

from torchtrt_executorch.overlay.upstream import load_upstream

SIZES = (500, 1000, 2000, 4000, 8000, 16000, 32000)
BETWEEN_DELEGATES = 25
UPSTREAM_SECONDS = 60.0


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def program(size: int) -> ExportedProgram:
    """Return a program of ``size`` nodes: residual adds, and a foreign delegate now and then."""
    result = export(Add(), (torch.ones(4),))
    graph_module = result.graph_module
    graph_module.lowered_module_0 = torch.nn.Module()
    graph = graph_module.graph
    x, add, output = graph.nodes
    earlier = latest = add
    with graph.inserting_before(output):
        lowered = graph.get_attr("lowered_module_0")
        while len(graph.nodes) < size:
            earlier, skipped = latest, earlier
            for _ in range(BETWEEN_DELEGATES):
                latest = graph.call_function(add.target, (latest, skipped))
                latest.meta["val"] = add.meta["val"]
            call = graph.call_function(executorch_call_delegate, (lowered, latest))
            latest = graph.call_function(operator.getitem, (call, 0))
            latest.meta["val"] = add.meta["val"]
    output.replace_input_with(add, latest)
    return result


def measure(partitioner: Any, size: int) -> tuple[float, int]:
    """Return the seconds that ``partitioner`` takes for ``size`` nodes, and its partitions."""
    graph = program(size)
    start = time.perf_counter()
    result = partitioner.partition(graph)
    return time.perf_counter() - start, len(result.partition_tags)


def main() -> None:
    """Print seconds and partitions by size; upstream as far as it gets in a minute."""
    warnings.simplefilter("ignore")
    theirs = load_upstream("executorch.backends.aoti.aoti_partitioner")
    upstream = theirs.AotiPartitioner("CudaBackend", [])
    ours = AotiPartitioner("CudaBackend", [])
    measure(ours, SIZES[0])  # imports and caches
    table = Table(title="AotiPartitioner.partition: seconds (partitions)")
    for heading in ("nodes", "upstream", "ours", "times faster"):
        table.add_column(heading, justify="right")
    spent = 0.0
    for size in SIZES:
        seconds, partitions = min(measure(ours, size) for _ in range(3))
        row = [str(size), "-", f"{seconds:.4f} ({partitions})", "-"]
        if (
            4 * spent < UPSTREAM_SECONDS
        ):  # it takes about four times as long at twice the size
            spent, count = measure(upstream, size)
            row[1], row[3] = f"{spent:.3f} ({count})", f"{spent / seconds:.0f}"
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
