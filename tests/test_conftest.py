"""What the whole test run sees to: that processes don't become slower with the tests they have run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.exir.backend.utils import is_same_node

from . import conftest


def test_graphs_that_nobody_has_any_more_are_freed() -> None:
    """Also those that ExecuTorch has compared, which it remembers for good."""
    before = conftest.graphs_left = conftest.graphs()
    graphs = [torch.fx.symbolic_trace(torch.nn.ReLU()) for _ in range(200)]
    for graph in graphs:
        first = next(iter(graph.graph.nodes))
        assert is_same_node(first, first)
    del graphs, graph, first
    assert conftest.graphs() >= before + 200
    conftest.free_graphs()
    assert conftest.graphs() <= before + 100


def test_what_is_left_alone_is_counted() -> None:
    before = conftest.graphs()
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    conftest.leave_alone()
    assert 0 < conftest.graphs_left <= before + 1
    assert type(graph) in torch.fx.GraphModule.__subclasses__()


@pytest.mark.parametrize("values", [{"a", "b"}, frozenset("ab"), ["a", "b"]])
def test_parameters_have_an_order(values: Any) -> None:
    marks = [pytest.mark.parametrize("name", values).mark]
    definition = SimpleNamespace(iter_markers=lambda name: marks, nodeid="test_it")
    metafunc: Any = SimpleNamespace(definition=definition)
    if isinstance(values, list):
        conftest.pytest_generate_tests(metafunc)
        return
    with pytest.raises(pytest.UsageError, match="test_it is parametrized by a set"):
        conftest.pytest_generate_tests(metafunc)
