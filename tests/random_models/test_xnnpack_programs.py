"""Random programs with XNNPACK's delegates, by our runtime and by ExecuTorch's own, on the same bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.lowered_backend_module import get_lowered_submodules
from hypothesis import Phase, given, settings
from torch.export import export

from torchtrt_executorch.runtime import load
from torchtrt_executorch.runtime.reading.xnnpack_graph import count_inputs

from ..executorch_runtime import UpstreamMethod
from .xnnpack_programs import Case, cases

CALLS = 3


def check(case: Case) -> None:
    """Our runtime's results as ExecuTorch's own, and as eager's; of each delegate, how many inputs it takes."""
    eager = case.model()
    edge = lowered(case)
    for _, module, call in get_lowered_submodules(edge.exported_program().graph_module):
        assert count_inputs(memoryview(module.processed_bytes)) == len(call.args) - 1
    data = edge.to_executorch().buffer
    ours, theirs = load(data), UpstreamMethod(data)
    for number in range(CALLS):
        inputs = case.inputs(number)
        results = [*ours.run(*inputs)]
        reference = [each.clone() for each in theirs.execute(inputs)]
        torch.testing.assert_close(results, reference, rtol=1e-6, atol=1e-6)
        expected = [*eager(*inputs)]
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4)


def lowered(case: Case) -> Any:
    """The edge program of a case."""
    with torch.no_grad():
        program = export(case.model(), case.inputs(0))
        return to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])


def test_a_delegate_with_an_argument_that_it_does_not_read() -> None:
    steps = ("fft", 0, 0), ("zeros", 2, 2), ("topk", 3, 3), ("softmax", 4, 4)
    case = Case((*steps, ("mul", 5, 0)), (2, 4, 6))
    edge = lowered(case).exported_program()
    graphs = [
        module.original_module.graph
        for _, module, _ in get_lowered_submodules(edge.graph_module)
    ]
    assert any(
        not any(user.users for user in placeholder.users)
        for graph in graphs
        for placeholder in graph.find_nodes(op="placeholder")
    )
    check(case)


@given(cases())
@settings(max_examples=15, deadline=None, phases=[Phase.generate], derandomize=True)
def test_xnnpack_programs(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))  # each within a test's time limit
@given(case=cases())
@settings(max_examples=150, deadline=None, phases=[Phase.generate])
def test_many_xnnpack_programs(part: int, case: Case) -> None:
    check(case)
