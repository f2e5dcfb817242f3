"""A graph is sorted where a partition's results are read before its call, and only there."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from executorch.exir import lowered_backend_module
from executorch.exir.lowered_backend_module import create_submodule_from_nodes
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def random_module(choose: random.Random, count: int) -> GraphModule:
    """A graph of additions and sines, of one input, whose unread values are all returned."""
    graph, mode = Graph(), FakeTensorMode()
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.ones(3))
    values = [x]
    for _ in range(count):
        two = choose.choice(values), choose.choice(values)
        if choose.random() < 0.5:
            node = graph.call_function(aten.add.Tensor, two)
        else:
            node = graph.call_function(aten.sin.default, two[:1])
        node.meta["val"] = x.meta["val"]
        values.append(node)
    graph.output(tuple(value for value in values[1:] if not value.users))
    return GraphModule(torch.nn.Module(), graph)


def convex(module: GraphModule, choose: random.Random) -> list[Node]:
    """Two to five nodes between which no other node's value is needed."""
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    nodes = [n for n in nodes if str(n.target).startswith("aten")]
    chosen: set[Node] = set()
    for _ in range(20):
        more = chosen | {choose.choice(nodes)}
        if len(more) <= 5 and _is_convex(module, more):
            chosen = more
    return [node for node in nodes if node in chosen]


def _is_convex(module: GraphModule, chosen: set[Node]) -> bool:
    behind: set[Node] = set()  # not chosen, and needs one that is
    for node in module.graph.nodes:
        needs = set(node.all_input_nodes)
        if node in chosen and needs & behind:
            return False
        if node not in chosen and needs & (chosen | behind):
            behind.add(node)
    return True


@pytest.mark.parametrize("seed", range(40))
def test_partitions_compute_what_their_nodes_did(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several partitions, one after another, in a graph that stays in order."""
    sorts: list[Any] = []
    sort: Any = lowered_backend_module.legalize_graph  # type: ignore[attr-defined]
    monkeypatch.setattr(
        lowered_backend_module,
        "legalize_graph",
        lambda module: (sorts.append(module), sort(module))[1],
    )
    choose = random.Random(seed)
    module = random_module(choose, choose.randint(4, 24))
    x = torch.linspace(-1, 1, 3)
    wanted: tuple[Tensor, ...] = module(x)
    partitions = 0
    for index in range(4):
        try:
            nodes = convex(module, choose)
        except IndexError:  # all are in partitions
            break
        before = [*module.graph.nodes]
        last = max(
            before.index(node)
            for node in nodes
            if any(user not in nodes for user in node.users)
        )
        early = any(
            before.index(user) < last
            for node in nodes
            for user in node.users
            if user not in nodes
        )
        sorts.clear()
        create_submodule_from_nodes(module, nodes, f"tag{index}")
        assert bool(sorts) == early
        module.graph.lint()
        partitions += 1
    module.recompile()
    assert partitions
    for result, expected in zip(module(x), wanted, strict=True):
        torch.testing.assert_close(result, expected)
