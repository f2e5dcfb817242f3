"""Constants that are on a GPU when a program is emitted: the file has their bytes."""

from __future__ import annotations

import copy

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn

from torchtrt_executorch.runtime import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="constants are put on a CUDA device"
    ),
]


class Model(nn.Module):
    """Has a parameter, a buffer that is written, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("count", torch.ones(4))
        self.table = torch.arange(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.linear(x).sin() + self.count * self.table.to(x.device)


@pytest.mark.parametrize("partitioners", [[], [XnnpackPartitioner()]], ids=len)
def test_a_model_on_a_gpu_is_emitted(partitioners: list) -> None:
    """Upstream reads them as if they were the host's, which ends the process (pytorch/executorch#21545)."""
    model, x = Model().eval(), torch.randn(2, 8)
    expected = copy.deepcopy(model)(x)
    program = torch.export.export(model.cuda(), (x.cuda(),))
    edge = to_edge_transform_and_lower(program, partitioner=partitioners)
    (found,) = load(edge.to_executorch().buffer).run(x)
    torch.testing.assert_close(found, expected)
