"""What the whole test run sees to: that processes don't become slower with the tests they have run."""

from __future__ import annotations

import torch
from executorch.exir.backend.utils import is_same_node

from . import conftest


def test_graphs_that_nobody_has_any_more_are_freed() -> None:
    """Also those that ExecuTorch has compared, which it remembers for good."""
    graphs = [torch.fx.symbolic_trace(torch.nn.ReLU()) for _ in range(101)]
    for graph in graphs:
        first, *_ = graph.graph.nodes
        assert is_same_node(first, first)
    enough = conftest._left_alone + 100
    assert conftest._graphs() > enough
    del graphs, graph, first
    conftest.pytest_runtest_logfinish()
    assert conftest._graphs() <= enough


def test_what_is_left_alone_is_counted_anew() -> None:
    graphs = [torch.fx.symbolic_trace(torch.nn.ReLU()) for _ in range(101)]
    conftest._leave_alone()
    assert conftest._left_alone == conftest._graphs() >= len(graphs)
