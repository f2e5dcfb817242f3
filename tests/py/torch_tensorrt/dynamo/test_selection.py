"""Validators of converters that fail over a node, instead of saying whether they take it."""

from __future__ import annotations

import logging

import pytest
import torch
import torch_tensorrt
from torch.fx import Graph
from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS

from torchtrt_executorch import emulated_engines


class Sorted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sort().values + 1  # no dimension: the operator's default


@pytest.mark.parametrize("routing", ["target", "node"])
@pytest.mark.parametrize("on", [False, True])
def test_a_sort_along_the_default_dimension(on: bool, routing: str) -> None:
    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    program = torch.export.export(Sorted(), (x,))
    with emulated_engines():
        compiled = torch_tensorrt.dynamo.compile(
            program,
            arg_inputs=[x],
            min_block_size=1,
            target_executorch=on,
            executorch_allocator_routing=routing,
        )
    torch.testing.assert_close(compiled(x), Sorted()(x))


@pytest.mark.parametrize("name", ["topk", "topk_1"])
def test_the_node_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without the k that upstream's validator looks for, on each release."""
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["tensor_meta"] = torch.empty(2, 3)
    node = graph.create_node(
        "call_function", torch.ops.aten.topk.default, (x,), name=f"named_{name}"
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(
                KeyError, match=f"converters of named_{name} .*IndexError"
            ):
                DYNAMO_CONVERTERS[node]
    said = [each for each in caplog.messages if f"named_{name}" in each]
    assert len(said) == 1 and "torch.ops.aten.topk.default" in said[0]


def test_no_validator_fails_raw() -> None:
    for target in sorted(DYNAMO_CONVERTERS.unique_targets(), key=str):
        if callable(target):
            graph = Graph()
            node = graph.call_function(target, (graph.placeholder("x"),))
            for bare in (node, graph.call_function(target)):
                assert (bare in DYNAMO_CONVERTERS) in (True, False)
