"""What is in no delegate, and has no kernel in ExecuTorch's runtime, is named when the program is written."""

from __future__ import annotations

import logging

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.decompositions import _sizes
from torch import Tensor, nn

from ....lowering import lower

ROWS = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 1]])


class Scattered(nn.Module):
    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.reduce = reduce

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(2, 4)
        if self.reduce == "scatter_add":
            return zeros.scatter_add(0, ROWS, x)
        return zeros.scatter_reduce(0, ROWS, x, self.reduce)


class Graph(nn.Module):
    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.layer = Scattered(reduce)

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x.sin()) + self.layer(x)).cos()


@pytest.mark.parametrize("reduce", ["scatter_add", "amax"])
def test_the_operator_its_module_and_kernel_are_named(
    reduce: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ExecuTorch has no kernel for amax, and what is too large isn't decomposed.
    monkeypatch.setattr(_sizes, "MOST_ELEMENTS", 1)
    edge = lower(Graph(reduce), (torch.randn(3, 4),), XnnpackPartitioner())
    with caplog.at_level(logging.WARNING):
        edge.to_executorch()
    said = [each for each in caplog.messages if "has no kernel" in each]
    if reduce == "scatter_add":
        assert not said
        return
    (once,) = said
    assert once.startswith("forward: aten.scatter_reduce.two")
    assert "of layer is in no delegate" in once
    assert "register one for aten::scatter_reduce.two_out" in once
