"""The search for the smallest part of a partition that is refused, with a builder that says what it refuses."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch_tensorrt.dynamo.fallback.bisection import Budget, smallest_refusal
from torch_tensorrt.dynamo.fallback.rejections import RefusedError

from .....lowering import BaseModel


class Mixed(BaseModel, weight=lambda: nn.Parameter(torch.randn(4))):
    """Operators with weights, a tuple, and a size that several read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        for _ in range(8):
            x = (x * self.weight).sin()
            values, _ = torch.topk(x, 2)
            x = torch.cat([values, x.flip(1)[:, :2].cos()], 1)
            x = x * rows + torch.arange(rows)[:, None]
        return x


@functools.cache
def partition() -> GraphModule:
    x, rows = torch.randn(3, 4), torch.export.Dim("rows", min=2, max=9)
    program = torch.export.export(Mixed(), (x,), dynamic_shapes={"x": {0: rows}})
    module = program.run_decompositions().module(check_guards=False)
    assert isinstance(module, GraphModule)
    return module


class Builder:
    """Builds partitions by running them; refuses those with all of ``together``, or any of ``named``."""

    def __init__(self, together: Iterable[str], named: Iterable[str] = ()) -> None:
        self.together, self.named = {*together}, {*named}
        self.sizes: list[int] = []

    def __call__(self, module: GraphModule) -> None:
        module.graph.lint()
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        names = {node.name for node in calls}
        self.sizes.append(len(names))
        if found := [node for node in calls if node.name in self.named]:
            raise RefusedError("a test", "it is named", found)
        if names >= self.together:
            raise RefusedError("a test", "no words", calls, exact=False)
        for node in module.graph.find_nodes(op="placeholder"):
            assert isinstance(node.meta["val"], torch.Tensor), "engines take no numbers"
        (returned,) = module.graph.output_node().args
        for node in returned if isinstance(returned, (tuple, list)) else [returned]:
            assert isinstance(node.meta["val"], torch.Tensor)


def left(builder: Builder, seconds: float = 60) -> tuple[list[str], Budget]:
    module, budget = partition(), Budget(seconds)
    with pytest.raises(RefusedError) as caught:
        builder(module)
    before = str(module.graph)
    found = smallest_refusal(caught.value, module, builder, budget)
    assert str(module.graph) == before
    return [*(found.nodes if found.exact else found.partition)], budget


OPERATORS = [
    node.name
    for node in partition().graph.nodes
    if node.op == "call_function"
    and isinstance(node.meta["val"], (torch.Tensor, tuple, list))
    and "getitem" not in node.name
]


@pytest.mark.parametrize("name", OPERATORS[::5] + OPERATORS[-1:])
def test_one_operator_is_found_in_few_builds(name: str) -> None:
    builder = Builder([name])
    found, budget = left(builder)
    assert found[0] == name
    assert all(each.startswith("getitem") for each in found[1:])
    assert len(builder.sizes) <= 1 + 2 * math.ceil(math.log2(len(OPERATORS)))
    assert sum(builder.sizes[1:]) < 2.5 * builder.sizes[0]
    assert not budget.ended_search


@pytest.mark.parametrize("first", [0, 3, 17])
@pytest.mark.parametrize("last", [20, 40, len(OPERATORS) - 1])
def test_of_operators_that_are_refused_together_the_last_is_left(
    first: int, last: int
) -> None:
    builder = Builder([OPERATORS[first], OPERATORS[last]])
    found, _ = left(builder)
    assert found[0] == OPERATORS[last]
    assert len(builder.sizes) <= 1 + 2 * math.ceil(math.log2(len(OPERATORS)))


def test_the_builder_may_name_one_of_a_part() -> None:
    name = OPERATORS[30]

    class NamesInParts(Builder):
        def __call__(self, module: GraphModule) -> None:
            self.named = {name} if self.sizes else set()
            super().__call__(module)

    builder = NamesInParts([name])
    assert left(builder)[0] == [name]
    assert len(builder.sizes) < 4


def test_without_time_the_smallest_part_so_far_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, budget = left(Builder([OPERATORS[30]]), seconds=0)
    assert len(found) >= len(OPERATORS) and budget.ended_search

    builder = Builder([OPERATORS[30]])
    monkeypatch.setattr(
        "torch_tensorrt.dynamo.fallback.bisection.time.monotonic",
        lambda: float(len(builder.sizes)),
    )
    found, budget = left(builder, seconds=3)
    assert OPERATORS[30] in found and 1 < len(found) < len(OPERATORS) / 2
    assert len(builder.sizes) < 7 and budget.ended_search
