"""Constants that are on a GPU when a program is emitted: the file has their bytes."""

from __future__ import annotations

import copy

import pytest
import torch
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
    """Has a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin() * self.scale


def test_a_model_on_a_gpu_is_emitted() -> None:
    """Upstream reads them as if they were the host's, which ends the process (pytorch/executorch#21545)."""
    model, x = Model().eval(), torch.randn(2, 8)
    expected = copy.deepcopy(model)(x)
    program = torch.export.export(model.cuda(), (x.cuda(),))
    edge = to_edge_transform_and_lower(program)
    (found,) = load(edge.to_executorch().buffer).run(x)
    torch.testing.assert_close(found, expected)
