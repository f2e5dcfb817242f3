"""Outputs of an XNNPACK delegate that are one value, or an input, each have memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor
from torch.export import Dim

from ...lowering import BaseModel, Function, assert_same_as_eager, lower


class Averaging(BaseModel, total=lambda: torch.zeros(3, 4)):
    """Adds inputs up, and returns a copy of the sum, as running statistics do."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = self.total.add_(x)
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
    function = RETURNED[name]
    edge = lower(lambda x: function(x + 1), (torch.randn(shape),), XnnpackPartitioner())
    assert_same_as_eager(edge, lambda x: function(x + 1), (torch.randn(shape),))


def test_copies_have_the_size_of_each_call() -> None:
    model = Function(lambda x: RETURNED["two copies"](x + 1))
    sizes = ({0: Dim("n", min=1, max=8), 1: Dim("m", min=1, max=8)},)
    calls = [(torch.randn(3, 4),), (torch.randn(1, 8),), (torch.randn(7, 2),)]
    edge = lower(model, calls[0], XnnpackPartitioner(), dynamic_shapes=sizes)
    assert_same_as_eager(edge, model, *calls)


def test_a_written_buffer_is_returned() -> None:
    model, x = Averaging().eval(), torch.randn(3, 4)
    edge = lower(model, (x,), XnnpackPartitioner())
    assert_same_as_eager(edge, model, (x,), (x,))
