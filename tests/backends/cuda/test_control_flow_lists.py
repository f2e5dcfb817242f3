"""Each kind of control flow by each list of partitioners: where it runs, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner
from functorch.experimental.control_flow import map as map_over
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim, export
from torch.fx import GraphModule
from torch_tensorrt.executorch import TensorRTPartitioner

from torchtrt_executorch import emulated_engines, runtime

from .conftest import needs_compilers

pytestmark = [
    needs_compilers,
    pytest.mark.builds,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
]

X = torch.linspace(-1, 1, 32).reshape(4, 8)
#: For each outcome of every predicate in the models, of the smallest, the example's and the largest length.
INPUTS = tuple(
    rows
    for x in (X + 1, X - 1, X * 0.1 + 0.01, -3 * X - 0.5)
    for rows in (x[:2], x, torch.cat([x, -x]))
)


class Model(nn.Module):
    """Control flow between linears."""

    def __init__(self, function: Callable[[Tensor, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.one, self.two, self.last = (nn.Linear(8, 8) for _ in range(4))
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.last(self.function(self.first(x).sin(), self)).relu()


def branches(x: Tensor, of: Any) -> Any:
    """A linear and a convolution."""

    def convolved(x: Tensor) -> Tensor:
        return of.conv(x[:, None])[:, 0].relu()

    return torch.cond(x.sum() > 0, of.one, convolved, (x,))


def nested(x: Tensor, of: Any) -> Any:
    def deep(x: Tensor) -> Tensor:
        large = x.max() > 0.5
        return torch.cond(large, of.one, lambda x: of.two(x) * 2, (x,)).relu()

    return torch.cond(x.sum() > 0, deep, of.two, (x * 2,))


def counted(x: Tensor, of: Any) -> Any:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(of.one(y))

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))[1]


def until(x: Tensor, of: Any) -> Any:
    def body(y: Tensor) -> tuple[Tensor]:
        return (of.one(y).abs() + y.abs() + 1,)

    return while_loop(lambda y: y.sum() < 100, body, (x,))[0]


def mapped(x: Tensor, of: Any) -> Any:
    return map_over(lambda row, x: torch.relu(of.one(row)) + x.sum(), x + 1, x)


def branch_in_a_map(x: Tensor, of: Any) -> Any:
    def body(row: Tensor) -> Tensor:
        return torch.cond(row.sum() > 0, of.one, lambda row: row * 2, (row,))

    return map_over(body, x)


def scanned(x: Tensor, of: Any) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(of.one(carry) + row), carry * row

    last, rows = scan(body, x[0] * 1, x + 1)
    return torch.cat([last[None], rows])


def scanned_from_zeros(x: Tensor, of: Any) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return of.one(carry + row), carry.sin()

    return scan(body, torch.zeros(8), x)[1]


def cuda() -> CudaPartitioner:
    return CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])


def tensorrt() -> TensorRTPartitioner:
    return TensorRTPartitioner(compile_settings={"min_block_size": 1})


LISTS: dict[str, Callable[[], list[Partitioner]]] = {
    "xnnpack": lambda: [XnnpackPartitioner()],
    "cuda": lambda: [cuda()],
    "tensorrt-xnnpack": lambda: [tensorrt(), XnnpackPartitioner()],
    "tensorrt-cuda": lambda: [tensorrt(), cuda()],
}
KINDS = {
    each.__name__: each
    for each in (
        branches,
        nested,
        counted,
        until,
        mapped,
        branch_in_a_map,
        scanned,
        scanned_from_zeros,
    )
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
        program = export(model, (X,), dynamic_shapes=dynamic)
        edge = to_edge_transform_and_lower(program, partitioner=LISTS[partitioners]())
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
