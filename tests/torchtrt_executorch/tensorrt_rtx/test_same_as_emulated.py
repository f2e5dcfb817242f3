"""Emulated engines and real ones have the same bindings: emulation takes no shortcut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from executorch.exir import EdgeProgramManager
from torch import nn
from torch_tensorrt.executorch.serialization import deserialize_engine

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from ...lowering import delegates, lower, tensorrt_partitioner

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Call(nn.Module):
    """A function, with a weight and a buffer that it may count in."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("n", torch.zeros(3))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def counted(self: Any, x: torch.Tensor) -> Any:
    self.n += 1
    return self.n.clone(), x * 2


def cloned(self: Any, x: torch.Tensor) -> Any:
    y = self.linear(x)
    return y, y.clone(), y.clone(memory_format=torch.contiguous_format)


def viewed(self: Any, x: torch.Tensor) -> Any:
    h = self.linear(x)
    return h.relu(), h, h.view(-1), h.reshape(3, 4), h.detach(), h.expand(3, 4)


def cast(self: Any, x: torch.Tensor) -> Any:
    h = self.linear(x)
    return h, h.to(torch.float32), h.half(), h.half().float(), h > 0, (h > 0).bool()


def written(self: Any, x: torch.Tensor) -> Any:
    self.n.copy_(self.linear(x).sum(1))
    return self.n.clone(), self.n.clone()


MODELS = [counted, cloned, viewed, cast, written]


def lowered(function: Callable[..., Any], emulate: bool) -> EdgeProgramManager:
    with emulated_engines() if emulate else nullcontext():
        return lower(Call(function), (X,), tensorrt_partitioner())


def bindings(edge: EdgeProgramManager) -> list[Any]:
    engines = [deserialize_engine(each.processed_bytes) for each in delegates(edge)]
    return [metadata.io_bindings for _, metadata in engines]


@pytest.mark.parametrize("function", MODELS, ids=lambda function: function.__name__)
def test_outputs_that_are_one_tensor(function: Callable[..., Any]) -> None:
    """In TensorRT; the partition returns each, and so does the engine."""
    real, emulated = lowered(function, False), lowered(function, True)
    counts = [len(each) for each in bindings(real)]
    assert counts == [len(each) for each in bindings(emulated)]
    made = load(real.to_executorch().buffer)
    model = Call(function).eval()
    for _ in range(2):
        expected = torch.utils._pytree.tree_leaves(model(X))
        torch.testing.assert_close(list(made.run(X)), expected)
