"""``map`` and ``scan`` as a ``while_loop`` whose number of turns is on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.aoti._counted_loops import (
    COUNTED,
    count_loops,
    why_not_counted,
)
from functorch.experimental.control_flow import map as map_over
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.export import Dim, ExportedProgram, export
from torch.fx import GraphModule

from ...loops import Model

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def mapped(x: Tensor, linear: nn.Module) -> Any:
    return map_over(lambda row, x: linear(row) + x.sum(), x + 1, x)


def mapped_to_two(x: Tensor, linear: nn.Module) -> Any:
    """Results of another shape and type each, over a tree."""

    def body(rows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return (rows[0] > rows[1]).sum(), torch.outer(rows[0], rows[1])[:2]

    return map_over(body, (x, x.sin() * 2))


def scanned(x: Tensor, linear: nn.Module) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(linear(carry) + row), carry * row

    return scan(body, x[0] * 1, x)


def scanned_from_zeros(x: Tensor, linear: nn.Module) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return linear(carry + row), carry.sum()

    return scan(body, torch.zeros(8), x)


def mapped_in_a_branch(x: Tensor, linear: nn.Module) -> Any:
    def rows(x: Tensor) -> Any:
        return map_over(lambda row: torch.relu(linear(row)), x)

    return torch.cond(x.sum() > 0, rows, lambda x: linear(x), (x,))


def branch_in_a_map(x: Tensor, linear: nn.Module) -> Any:
    def body(row: Tensor) -> Tensor:
        return torch.cond(row.sum() > 0, linear, lambda row: row * 2, (row,))

    return map_over(body, x)


def map_in_a_scan(x: Tensor, linear: nn.Module) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        numbers = map_over(lambda number: number.sin() + 1, row)
        return carry + numbers, linear(carry)

    return scan(body, x[0] * 1, x)


def targets(program: ExportedProgram) -> list[Any]:
    modules = program.graph_module.modules()
    graphs = [each.graph for each in modules if isinstance(each, GraphModule)]
    return [node.target for graph in graphs for node in graph.nodes]


@pytest.mark.parametrize(
    "function",
    [
        *(mapped, mapped_to_two, scanned, scanned_from_zeros, mapped_in_a_branch),
        *(branch_in_a_map, map_in_a_scan),
    ],
)
def test_counted_loops_compute_what_eager_does(
    function: Callable[[Tensor, nn.Module], Any],
) -> None:
    model = Model(function)
    rows = Dim("rows", min=2, max=8)
    program = export(model, (X,), dynamic_shapes=({0: rows},))
    assert not set(COUNTED).isdisjoint(targets(program))
    count_loops(program.graph_module)
    assert set(COUNTED).isdisjoint(targets(program))
    counted = program.module()
    for x in (X, X[:2] - 1, torch.cat([X, -X]) + 1):
        torch.testing.assert_close(counted(x), model(x))


def test_a_row_of_a_size_of_nothing_given_stays() -> None:
    def doubled(x: Tensor, linear: nn.Module) -> Any:
        return map_over(lambda row: torch.cat([row, row]), x)

    width = Dim("width", min=2, max=8)
    program = export(Model(doubled), (X,), dynamic_shapes=({1: width},))
    (loop,) = (each for each in program.graph.nodes if each.target in COUNTED)
    assert "is the size of nothing that it is given" in why_not_counted(loop)
