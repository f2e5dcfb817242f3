"""Outputs of an XNNPACK delegate that are one value, or an input, each have memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import Dim, export

from torchtrt_executorch.runtime import load

from ...lowering import lower


class Returning(nn.Module):
    """What a function makes of the input plus one."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x + 1)


class Averaging(nn.Module):
    """Adds inputs up, and returns a copy of the sum, as running statistics do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total: Tensor = self.total  # type: ignore[assignment]
        total.add_(x)
        return total.clone(), x * total


RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "a copy beside it": lambda y: (y, y.clone()),
    "two copies": lambda y: (y.clone(), y.clone(), y * 2),
    "a copy of a view": lambda y: (y, y.view(-1).view(y.shape).clone()),
    "twice": lambda y: (y, y, y * 2),
}


@pytest.mark.parametrize("shape", [(3, 4), (1, 2, 3, 4), ()], ids=str)
@pytest.mark.parametrize("name", RETURNED)
def test_a_value_is_returned_several_times(name: str, shape: tuple[int, ...]) -> None:
    """Upstream raises: "Output node 'aten_add_tensor' is already in the inputs"."""
    model, x = Returning(RETURNED[name]).eval(), torch.randn(shape)
    edge = lower(model, (x,), XnnpackPartitioner())
    found = load(edge.to_executorch().buffer).run(x)
    for value, wanted in zip(found, model(x), strict=True):
        torch.testing.assert_close(value, wanted)


def test_copies_have_the_size_of_each_call() -> None:
    model = Returning(RETURNED["two copies"]).eval()
    sizes = ({0: Dim("n", min=1, max=8), 1: Dim("m", min=1, max=8)},)
    program = export(model, (torch.randn(3, 4),), dynamic_shapes=sizes)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    loaded = load(edge.to_executorch().buffer)
    for x in (torch.randn(3, 4), torch.randn(1, 8), torch.randn(7, 2)):
        torch.testing.assert_close(loaded.run(x), model(x))


def test_a_written_buffer_is_returned() -> None:
    model, x = Averaging().eval(), torch.randn(3, 4)
    edge = lower(model, (x,), XnnpackPartitioner())
    loaded = load(edge.to_executorch().buffer)
    for _ in range(2):
        torch.testing.assert_close(loaded.run(x), model(x))
