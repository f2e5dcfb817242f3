"""Outputs that are no tensors, at every place, with either partitioner and whatever compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch.utils import _pytree as pytree

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from .....lowering import BaseModel, Function

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8).reshape(2, 4)
RELU = "torch.ops.aten.relu.default"


def first(x: Tensor) -> Any:
    return None, torch.relu(x * 2) + 1


def nested(x: Tensor) -> Any:
    return torch.relu(x * 2), None, (x + 1, {"a": None, "b": 3})


def repeated(x: Tensor) -> Any:
    """A value that is returned twice, and one of each kind that a ``.pte`` can hold."""
    y = torch.relu(x * 2)
    return 5, y.sin(), y, y, 1.5, True, x


class Written(BaseModel, count=lambda: torch.zeros(4)):
    """It writes to a buffer as well."""

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return None, torch.relu(x * 2) + self.count


class Nothing(BaseModel, count=lambda: torch.zeros(4)):
    """No output is a tensor."""

    def forward(self, x: Tensor) -> Any:
        self.count += torch.relu(x * 2).sum(0)
        return {"none": None, "three": 3}


def of(function: Any) -> Any:
    return pytest.param(lambda: Function(function), id=function.__name__)


MODELS = [of(first), of(nested), of(repeated), Written, Nothing]


def compiled_of(
    model: torch.nn.Module, x: Tensor, outside: set[str], fast: bool
) -> torch.fx.GraphModule:
    return torch_tensorrt.dynamo.compile(
        torch.export.export(model, (x,)),
        arg_inputs=[x],
        min_block_size=1,
        torch_executed_ops=outside,
        use_fast_partitioner=fast,
    )


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
    model: Callable[[], torch.nn.Module], outside: set[str], fast: bool
) -> None:
    with emulated_engines():
        compiled = compiled_of(model(), X, outside, fast)
        edges = [
            torch_tensorrt.executorch.export(compiled, allow_no_engine=True, **options)
            for options in ({}, {"retrace": True, "arg_inputs": [X]})
        ]
        for edge in edges:
            check(load(edge.to_executorch().buffer).method(), model(), flat=True)
        check(compiled, model())


@pytest.mark.parametrize("model", MODELS[:2])
def test_torch_compile(model: Callable[[], torch.nn.Module]) -> None:
    options = {"min_block_size": 1, "pass_through_build_failures": True}
    with emulated_engines():
        compiled = torch.compile(model(), backend="tensorrt", options=options)
        check(compiled, model())


@pytest.mark.parametrize("model", MODELS)
def test_mutable_module(model: Callable[[], torch.nn.Module]) -> None:
    with emulated_engines():
        module = torch_tensorrt.MutableTorchTensorRTModule(model(), min_block_size=1)
        check(module, model())


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "global"])
@pytest.mark.parametrize("rows", [1, 2])
def test_an_engines_only_output_read_in_pytorch(rows: int, fast: bool) -> None:
    """Upstream counts an engine's outputs by ``len()``, of a tensor after a global partitioning."""

    model, x = Function(lambda x: torch.relu(x * 2) + 1), X[:rows]
    with emulated_engines():
        compiled = compiled_of(model, x, {RELU}, fast)
        edge = torch_tensorrt.executorch.export(compiled)
        found = load(edge.to_executorch().buffer).run(x)
    torch.testing.assert_close(found[0], model(x))
