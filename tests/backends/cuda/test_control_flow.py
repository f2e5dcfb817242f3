"""Control flow that the CUDA backend compiles whole, and what is left to the host with its branches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.aoti._branch_constants import inline_branch_constants
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge
from executorch.exir.backend.partitioner import Partitioner
from functorch.experimental.control_flow import map as map_over
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch.export import export

from torchtrt_executorch import emulated_engines, report

from ...lowering import (
    BaseModel,
    Function,
    assert_same_as_eager,
    backends,
    cuda_partitioner,
    lower,
    tensorrt_partitioner,
)
from .conftest import needs_compilers, without_gpu

pytestmark = [needs_compilers, pytest.mark.builds, without_gpu]

X = torch.linspace(-1, 1, 32).reshape(4, 8)
#: For each outcome of every predicate in the models.
INPUTS = (X + 1, X - 1, X * 0.1 + 0.01, -3 * X - 0.5)


class Everything(nn.Module):
    """Parameters, a buffer, numbers, views, divisions of integers, a branch in a branch; read afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("shift", torch.linspace(1, 2, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        def deep(x: Tensor) -> Tensor:
            large = x.max() > 0.5
            inner = torch.cond(large, lambda x: x.sin() * 2, lambda x: x + 3, (x + 1,))
            return self.one(inner) - self.shift

        def first(x: Tensor) -> tuple[Tensor, ...]:
            whole = (x[:, :4] * 10).to(torch.int64)
            return x[1:3].clone(), whole // 3, x.sum(0), torch.ones(())

        def other(x: Tensor) -> tuple[Tensor, ...]:
            whole = (x * 7).to(torch.int64)[:, :4]
            row = x.split(4, 1)[1].reshape(2, 8)[0] * 1
            return x[:2] + 0, whole // -2, row, x.sum() * 0

        positive = x.sum() > 0
        y = torch.cond(positive, deep, lambda x: torch.relu(self.two(x)), (x * 2,))
        rows, whole, row, number = torch.cond(positive, first, other, (y,))
        return rows.relu() + self.shift, whole + 1, row * number, y


def rows_by_distance(x: Tensor) -> Tensor:
    """Of (4, n), a row of the same distances for each of its rows, (4, 4)."""
    return nn.functional.pdist(x)[:4].expand(4, 4) + 0


class LeftInPart(BaseModel, one=lambda: nn.Linear(8, 8), two=lambda: nn.Linear(8, 4)):
    """A branch that can't be compiled beside a linear in the other, and linears around."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        flag = x.sum() > 4
        y = torch.cond(flag, lambda x: rows_by_distance(x * 2), self.two, (x,))
        return torch.softmax(y, -1) @ self.one.weight[:4]


def repeated(x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.relu(y * 2) + 1

    found: Tensor = while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))[1]
    return found * 3


LISTS: dict[str, Callable[[], list[Partitioner]]] = {
    "cuda": lambda: [cuda_partitioner()],
    "cuda-xnnpack": lambda: [cuda_partitioner(), XnnpackPartitioner()],
    "tensorrt-cuda-xnnpack": lambda: [
        *(tensorrt_partitioner(), cuda_partitioner(), XnnpackPartitioner())
    ],
}


def computes_what_eager_does(model: nn.Module, partitioners: list[Partitioner]) -> Any:
    """Lower, emit, run and compare; returns the edge program."""
    with emulated_engines():
        edge = lower(model, (X,), *partitioners)
    calls = ((x,) for x in INPUTS)
    assert_same_as_eager(edge, model, *calls, rtol=1e-4, atol=1e-5)
    return edge


def left(edge: Any) -> set[str]:
    """Return what runs on the host, in branches too."""
    operators = report(edge).methods["forward"].operators
    return {each.name for each in operators if each.reason}


@pytest.fixture(scope="module")
def everything() -> Everything:
    torch.manual_seed(0)
    return Everything().eval()


@pytest.mark.parametrize(
    "partitioners",
    ["cuda", *(pytest.param(name, marks=pytest.mark.slow) for name in [*LISTS][1:])],
)
def test_branches_are_compiled_with_the_graph_around_them(
    everything: Everything, partitioners: str
) -> None:
    edge = computes_what_eager_does(everything, LISTS[partitioners]())
    assert "CudaBackend" in backends(edge)
    assert partitioners != "cuda" or backends(edge) == ["CudaBackend"]


@pytest.mark.parametrize(
    "partitioners",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in [*LISTS][:2]),
        "tensorrt-cuda-xnnpack",
    ],
)
def test_control_flow_stays_on_the_host_with_all_in_its_branches(
    partitioners: str,
) -> None:
    torch.manual_seed(0)
    edge = computes_what_eager_does(LeftInPart().eval(), LISTS[partitioners]())
    assert {"aten._pdist_forward.default", "aten.addmm.default"} <= left(edge)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["map", "scan", "loop", "loop from an input"])
def test_loops_compute_what_eager_does(name: str) -> None:
    def carried(x: Tensor) -> Tensor:
        found = scan(lambda carry, row: (carry + row, carry * row), x[0], x + 1)
        return torch.cat([found[0][None], found[1]]) * 3

    def until(x: Tensor) -> Tensor:
        def body(y: Tensor) -> tuple[Tensor]:
            return (torch.relu(y * 2) + 1,)

        found: Tensor = while_loop(lambda y: y.sum() < 100, body, (x + 1,))[0]
        return found

    function = {
        "map": lambda x: map_over(lambda row: torch.relu(row * 2) + 1, x + 1) * 3,
        "scan": carried,
        "loop": repeated,
        "loop from an input": until,
    }[name]
    edge = computes_what_eager_does(Function(function), [cuda_partitioner()])
    assert "CudaBackend" in backends(edge)


def test_a_linear_in_a_branch_is_decomposed_where_nobody_takes_it_whole() -> None:
    torch.manual_seed(0)
    model = LeftInPart().eval()
    edge = computes_what_eager_does(model, [XnnpackPartitioner()])
    assert "aten.addmm.default" in left(edge)


class Loop(BaseModel, linear=lambda: nn.Linear(8, 8)):
    """A linear in a loop's body, and an operator that is decomposed in its condition, alone in their graphs."""

    def forward(self, x: Tensor) -> Any:
        def body(y: Tensor) -> tuple[Tensor]:
            return (self.linear(y).abs() + 1,)

        return while_loop(lambda y: y.sum() < 100, body, (x.sin(),))


@pytest.mark.parametrize("list_", ["xnnpack", "tensorrt"])
def test_a_loop_that_nobody_takes_is_named(list_: str) -> None:
    partitioner = XnnpackPartitioner() if list_ == "xnnpack" else tensorrt_partitioner()
    with emulated_engines():
        edge = lower(nn.Sequential(nn.ReLU(), Loop()), (X,), partitioner)
    says = r"^forward: ExecuTorch can't emit while_loop \(node while_loop of .*\), .*unroll_loops"
    with pytest.raises(RuntimeError, match=says):
        edge.to_executorch()


def test_a_convolution_of_one_dimension_is_supported_in_a_branch() -> None:
    conv = nn.Conv1d(4, 8, 3)

    def function(x: Tensor) -> Tensor:
        # Summed up, as PyTorch 2.13 exports no branch that returns what such a convolution does.
        return torch.cond(
            x.sum() > 0, lambda x: conv(x).sum(-1), lambda x: conv(-x).sum(-1), (x,)
        )

    model = Function(function)
    model.conv = conv
    program = export(model, (X[None],)).run_decompositions()
    assert not cuda_partitioner().unsupported(program)


def test_numbers_of_branches_become_code() -> None:
    def function(x: Tensor) -> Tensor:
        def deep(x: Tensor) -> Tensor:
            return torch.cond(x.max() > 1, lambda x: x + 1, lambda x: x - 1, (x,)) * 2

        return torch.cond(x.sum() > 0, deep, lambda x: x / 4, (x,))

    program = to_edge(export(Function(function), (X,))).exported_program()
    module = copy.deepcopy(program.graph_module)
    inline_branch_constants(module)
    inner = [each for each in module.modules() if each is not module]
    held = [value for each in inner for value in vars(each).values()]
    held += [value for each in inner for value in each.buffers(recurse=False)]
    assert not any(isinstance(value, Tensor) for value in held)
