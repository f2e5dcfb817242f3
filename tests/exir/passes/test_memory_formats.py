"""Casts and copies of values in any layout: they lower, and are right in ExecuTorch's runtime."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any, Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn
from torch.export import Dim
from torch.nn import functional

from ...executorch_runtime import UpstreamMethod
from ...lowering import assert_same_as_eager, lower

HALF = torch.float16
OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cast": lambda value: value.to(torch.float16),
    "clone": lambda value: value.clone(),
    "cast and keep": lambda value: value.to(HALF, memory_format=torch.preserve_format),
}
LAYOUTS = [*permutations(range(2)), *permutations(range(3))]
LAYOUTS += [(0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (0, 2, 1, 3)]


class OfState(nn.Module):
    """An operator of one buffer after the other, with the input added."""

    def __init__(
        self, states: list[torch.Tensor], operator: Callable[..., Any]
    ) -> None:
        super().__init__()
        parameters = (nn.Parameter(state, requires_grad=False) for state in states)
        self.states, self.operator = nn.ParameterList(parameters), operator

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x + self.operator(state).sum(-1).sum() for state in self.states]


class OfInputs(nn.Module):
    """An operator of one input after the other."""

    def __init__(self, operator: Callable[..., Any]) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        return [self.operator(x) * 2 for x in inputs]


def in_layout(order: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor whose dimensions lie in memory in ``order``."""
    sizes = [2, 3, 4, 5][: len(order)]
    dense = torch.linspace(-1, 1, math.prod(sizes)).reshape(sizes)
    return dense.permute([order.index(i) for i in range(len(order))])


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_state_in_any_layout(operator: Callable[..., Any]) -> None:
    x, states = torch.ones(3), [*map(in_layout, LAYOUTS)]
    assert [state.dim_order() for state in states] == LAYOUTS
    model = OfState(states, operator)
    method = UpstreamMethod(lower(model, (x,)).to_executorch().buffer)
    torch.testing.assert_close([*method.execute([x])], model(x))


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_inputs_in_any_layout(operator: Callable[..., Any]) -> None:
    inputs, model = (*map(in_layout, LAYOUTS),), OfInputs(operator)
    edge = lower(model, inputs, XnnpackPartitioner())
    assert_same_as_eager(edge, model, inputs)


def test_channels_last_stays() -> None:
    x = torch.ones(1, 3, 4, 5).to(memory_format=torch.channels_last)
    edge = lower(OfInputs(OPERATORS["cast"]), (x,)).exported_program()
    orders = [node.kwargs.get("dim_order") for node in edge.graph.nodes]
    assert [0, 2, 3, 1] in orders


def kept_edges(edges: torch.Tensor) -> torch.Tensor:
    """The edges of a graph that are no loops, and those of their sources, as a GCN has them."""
    kept = edges[:, edges[0] != edges[1]]
    return kept.t().clone() * 2


def test_strides_that_depend_on_data_have_an_order() -> None:
    edges = torch.tensor([[0, 1, 2, 2], [0, 2, 1, 2]])
    assert_same_as_eager(lower(kept_edges, (edges,)), kept_edges, (edges,))


EMPTY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "circular padding": lambda x: functional.pad(x, (1, 2), mode="circular"),
    "integers": lambda x: torch.empty(x.shape, dtype=torch.int32).copy_(x) + 1,
    "booleans": lambda x: x.new_empty((2, x.shape[0]), dtype=torch.bool).copy_(
        x[:, 0, 0] > 0
    ),
}


@pytest.mark.parametrize("operator", EMPTY.values(), ids=EMPTY)
def test_empty_tensors_keep_dynamic_sizes_dynamic(operator: Callable[..., Any]) -> None:
    model, x = OfInputs(operator), torch.arange(36.0).reshape(3, 2, 6)
    shapes = {"inputs": (({0: Dim("rows", min=1, max=8)}),)}
    edge = lower(model, (x,), XnnpackPartitioner(), dynamic_shapes=shapes)
    method = UpstreamMethod(edge.to_executorch().buffer)
    for rows in (1, 3, 8):
        given = torch.randn(rows, 2, 6)
        torch.testing.assert_close([*method.execute([given])], model(given))


POSITIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "returned": torch.nonzero,
    "in arithmetic": lambda x: torch.nonzero(x) + 1,
    "reduced": lambda x: torch.nonzero(x).float().sum(0),
    "a column": lambda x: torch.nonzero(x)[:, 1],
    "transposed": lambda x: torch.nonzero(x).t(),
    "joined": lambda x: torch.cat([torch.nonzero(x), torch.nonzero(x < 0)]),
    "indices": lambda x: x[torch.where(x)],
}


@pytest.mark.parametrize("operator", POSITIONS.values(), ids=POSITIONS)
def test_positions_have_the_layout_that_the_kernel_writes(
    operator: Callable[..., Any],
) -> None:
    x = torch.tensor([[0.0, 1, 0, 2], [-3, 0, 0, 4], [0, 0, -5, 6]])
    model = OfInputs(operator)
    assert_same_as_eager(lower(model, (x,)), model, (x,), upstream=True)
