"""Layers that are quantized statically and share a bias each add it by the scale of their own input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn

from tests.backends.xnnpack.quantized import by_pt2e
from torchtrt_executorch.runtime import load

VECTORS = torch.linspace(-3, 3, 4 * 8).sin().reshape(4, 8)
IMAGES = torch.linspace(-3, 3, 2 * 8 * 6 * 6).sin().reshape(2, 8, 6, 6)


class Twice(nn.Module):
    """``second(4 * first(x))``, of which ``second`` has the bias of ``first``."""

    def __init__(self, make: Callable[[], nn.Module], tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = make()
        self.second = make() if tied else self.first
        self.second.bias = self.first.bias = nn.Parameter(torch.randn(8) * 8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(4 * self.first(x))
        return found


LAYERS = {
    "linear": (lambda: nn.Linear(8, 8), VECTORS),
    "convolution": (lambda: nn.Conv2d(8, 8, 3, padding=1), IMAGES),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, padding=1, groups=8), IMAGES),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("tied", [False, True], ids=["one layer", "two layers"])
@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_adds_its_bias_by_its_own_scale(
    name: str, tied: bool, per_channel: bool
) -> None:
    """Upstream's second linear is off by more than the largest value, and its second convolution isn't created."""
    make, x = LAYERS[name]
    model = Twice(make, tied).eval()
    program = by_pt2e(model, (x,), is_per_channel=per_channel)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    (found,), wanted = load(edge.to_executorch().buffer).run(x), program.module()(x)
    step = wanted.abs().max() / 127
    assert (found - wanted).abs().max() <= 2 * step
