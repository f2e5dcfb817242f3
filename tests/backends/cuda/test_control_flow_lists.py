"""Each kind of control flow by each list of partitioners: where it runs, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.backend.partitioner import Partitioner
from torch.export import Dim
from torch.fx import GraphModule

from torchtrt_executorch import emulated_engines, runtime

from ...lowering import cuda_partitioner, lower, tensorrt_partitioner
from .conftest import needs_compilers, without_gpu
from .control_flow import INPUTS, KINDS, Model, X

pytestmark = [needs_compilers, pytest.mark.builds, without_gpu]


LISTS: dict[str, Callable[[], list[Partitioner]]] = {
    "xnnpack": lambda: [XnnpackPartitioner()],
    "cuda": lambda: [cuda_partitioner()],
    "tensorrt-xnnpack": lambda: [tensorrt_partitioner(), XnnpackPartitioner()],
    "tensorrt-cuda": lambda: [tensorrt_partitioner(), cuda_partitioner()],
}
LOOPS = {"counted", "until"}


def left(edge: Any) -> int:
    """Return how many operators of control flow are in no delegate."""
    modules = edge.exported_program().graph_module.modules()
    graphs = [each.graph for each in modules if isinstance(each, GraphModule)]
    return sum(
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() in ("cond", "while_loop", "map_impl", "scan")
        for graph in graphs
        for node in graph.nodes
    )


@pytest.mark.slow
@pytest.mark.parametrize("partitioners", LISTS)
@pytest.mark.parametrize("kind", KINDS)
def test_control_flow_runs_where_it_is_said_to(kind: str, partitioners: str) -> None:
    """On the host, or in one CUDA delegate; ``while_loop``, which ExecuTorch can't emit, in a delegate alone."""
    model = Model(KINDS[kind]).eval()
    dynamic = ({0: Dim("rows", min=2, max=8)},)
    with torch.no_grad(), emulated_engines():
        edge = lower(model, (X,), *LISTS[partitioners](), dynamic_shapes=dynamic)
    assert bool(left(edge)) == ("cuda" not in partitioners)
    if kind in LOOPS and "cuda" not in partitioners:
        with pytest.raises(RuntimeError, match="ExecuTorch can't emit while_loop"):
            edge.to_executorch()
        return
    built = edge.to_executorch()
    data = [bytes(weights) for weights in built._tensor_data.values()]
    loaded = runtime.load(
        bytes(built.buffer), data, simulate_devices=True, emulated_engines=True
    )
    for x in INPUTS:
        with torch.no_grad():
            expected = model(x)
        torch.testing.assert_close(loaded.run(x), (expected,), rtol=1e-4, atol=1e-5)
