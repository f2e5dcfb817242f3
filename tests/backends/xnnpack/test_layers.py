"""XNNPACK's delegates have the pools, pads and batch norms of a model, whatever their arguments and names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor, nn
from torch.nn import functional as F

from torchtrt_executorch.runtime import load

from ...lowering import Function, lower

aten = torch.ops.aten
IMAGES = torch.linspace(-3, 3, 2 * 3 * 8 * 8).sin().reshape(2, 3, 8, 8)
INFINITY = float("inf")


def check(model: nn.Module, x: Tensor = IMAGES) -> None:
    """The model lowers to XNNPACK's delegates alone, which compute what eager does."""
    edge = lower(model, (x,), XnnpackPartitioner())
    names = [str(node.target) for node in edge.exported_program().graph.nodes]
    assert not [name for name in names if "aten" in name]
    found, wanted = load(edge.to_executorch().buffer).run(x), model(x)
    torch.testing.assert_close([*found], [*wanted] if len(found) > 1 else [wanted])


#: With defaults, with one number for both dimensions, and with all that there is.
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "kernel": lambda x: F.max_pool2d(x, 2),
    "kernel of one number": lambda x: aten.max_pool2d.default(x, [2]),
    "stride of one number": lambda x: aten.max_pool2d.default(x, [3, 2], [1]),
    "padding without stride": lambda x: aten.max_pool2d.default(x, [3, 2], [], [1]),
    "dilation": lambda x: aten.max_pool2d.default(x, [3], [1], [1], [2]),
    "ceil mode": lambda x: F.max_pool2d(x, 3, 2, 1, 1, ceil_mode=True),
    "ceil mode alone": lambda x: F.max_pool2d(x, 3, ceil_mode=True),
    "average": lambda x: F.avg_pool2d(x, 2, count_include_pad=False),
    "padded average": lambda x: F.avg_pool2d(x, 3, padding=1, count_include_pad=False),
    "average of one number": lambda x: aten.avg_pool2d.default(
        x, [2], [1], [0], False, False
    ),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_pools_with_default_arguments(pool: Callable[[Tensor], Tensor]) -> None:
    check(Function(pool))


@pytest.mark.parametrize("value", [INFINITY, -INFINITY])
def test_pads_by_infinity(value: float) -> None:
    check(Function(lambda x: F.pad(x, (1, 1, 2, 0), value=value)))


def norm(channels: int, seed: int, affine: bool = True) -> nn.Module:
    """A batch norm that has seen data."""
    found = nn.BatchNorm2d(channels, affine=affine)
    given = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in [*found.named_parameters(), *found.named_buffers()]:
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2, generator=given)
    return found


def test_batch_norms_of_layers_that_have_numbers_for_names() -> None:
    """A graph has no names that begin with a digit."""
    convs = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, bias=False)
    check(nn.Sequential(convs[0], norm(4, 0), nn.ReLU(), convs[1], norm(4, 1)))
    check(nn.Sequential(norm(3, 0), nn.ReLU(), norm(3, 1)))


class Twice(nn.Module):
    """Two batch norms, behind one layer for both where there is one."""

    def __init__(self, layer: nn.Module, norms: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.layer, self.first, self.second = layer, *norms

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(self.layer(x)), self.second(self.layer(x + 1))


def test_batch_norms_behind_one_layer_are_two() -> None:
    """Detectors share convolutions among levels, each with its own statistics."""
    check(Twice(nn.Conv2d(3, 4, 3), (norm(4, 0), norm(4, 1))))


def test_batch_norms_without_weights_or_with_the_same_are_two() -> None:
    check(Twice(nn.ReLU(), (norm(3, 0, affine=False), norm(3, 1, affine=False))))
    first, second = norm(3, 0), norm(3, 1)
    second.weight, second.bias = first.weight, first.bias
    check(Twice(nn.ReLU(), (first, second)))


class Named(nn.Module):
    """Has parameters of the names that ExecuTorch gives to fused ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), norm(4, 0)
        self.conv_weight_fused_bn = nn.Parameter(torch.linspace(1, 2, 4)[:, None, None])
        self.p_conv_weight_fused_bn = nn.Parameter(torch.ones(4, 1, 1) / 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.conv(x)) * self.conv_weight_fused_bn
        return found + self.p_conv_weight_fused_bn


def test_fused_weights_take_no_name_that_a_model_has() -> None:
    check(Named())
