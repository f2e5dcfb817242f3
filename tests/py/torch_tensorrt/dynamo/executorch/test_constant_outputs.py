"""Outputs that are no tensors, at every place, with either partitioner and whatever compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from torch.utils import _pytree as pytree

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8).reshape(2, 4)
RELU = "torch.ops.aten.relu.default"


class First(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return None, torch.relu(x * 2) + 1


class Nested(torch.nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.relu(x * 2), None, (x + 1, {"a": None, "b": 3})


class Repeated(torch.nn.Module):
    """A value that is returned twice, and one of each kind that a ``.pte`` can hold."""

    def forward(self, x: Tensor) -> Any:
        y = torch.relu(x * 2)
        return 5, y.sin(), y, y, 1.5, True, x


class Written(torch.nn.Module):
    """It writes to a buffer as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return None, torch.relu(x * 2) + self.count


class Nothing(torch.nn.Module):
    """No output is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        self.count += torch.relu(x * 2).sum(0)
        return {"none": None, "three": 3}


MODELS = [First, Nested, Repeated, Written, Nothing]


def check(run: Any, model: torch.nn.Module, flat: bool = False) -> None:
    """``run`` returns what ``model`` does, call by call; ``flat`` as a ``.pte`` returns it."""
    for factor in (1, -2):
        found, wanted = run(X * factor), model(X * factor)
        if flat:
            found, wanted = list(found), pytree.tree_leaves(wanted)
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("outside", "fast"),
    [(set(), True), ({RELU}, True), ({RELU}, False)],
    ids=["engine", "parts", "global"],
)
def test_compiled_and_exported(
    model: type[torch.nn.Module], outside: set[str], fast: bool
) -> None:
    with emulated_engines():
        compiled = torch_tensorrt.dynamo.compile(
            torch.export.export(model(), (X,)),
            arg_inputs=[X],
            min_block_size=1,
            torch_executed_ops=outside,
            use_fast_partitioner=fast,
        )
        edges = [
            torch_tensorrt.executorch.export(compiled, allow_no_engine=True, **options)
            for options in ({}, {"retrace": True, "arg_inputs": [X]})
        ]
        for edge in edges:
            check(load(edge.to_executorch().buffer).method(), model(), flat=True)
        check(compiled, model())


@pytest.mark.parametrize("model", [First, Nested])
def test_torch_compile(model: type[torch.nn.Module]) -> None:
    options = {"min_block_size": 1, "pass_through_build_failures": True}
    with emulated_engines():
        compiled = torch.compile(model(), backend="tensorrt", options=options)
        check(compiled, model())


@pytest.mark.parametrize("model", MODELS)
def test_mutable_module(model: type[torch.nn.Module]) -> None:
    with emulated_engines():
        module = torch_tensorrt.MutableTorchTensorRTModule(model(), min_block_size=1)
        check(module, model())


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "global"])
@pytest.mark.parametrize("rows", [1, 2])
def test_an_engines_only_output_read_in_pytorch(rows: int, fast: bool) -> None:
    """Upstream counts an engine's outputs by ``len()``, of a tensor after a global partitioning."""

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x * 2) + 1

    x = torch.linspace(-1, 1, rows * 4).reshape(rows, 4)
    with emulated_engines():
        compiled = torch_tensorrt.dynamo.compile(
            torch.export.export(Model(), (x,)),
            arg_inputs=[x],
            min_block_size=1,
            torch_executed_ops={RELU},
            use_fast_partitioner=fast,
        )
        edge = torch_tensorrt.executorch.export(compiled)
        found = load(edge.to_executorch().buffer).run(x)
    torch.testing.assert_close(found[0], Model()(x))
