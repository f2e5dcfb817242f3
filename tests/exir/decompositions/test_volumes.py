"""Convolutions of volumes as those of images: eager's values and strides, and one delegate of XNNPACK's."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.decompositions import _sizes, volumes
from torch import Tensor, nn
from torch.export import Dim

from ...lowering import assert_same_as_eager, lower, operators

#: Kernel, stride, padding, dilation, groups.
PLAIN = [*itertools.product((1, 2, 3, 7), (1, 2, 3), (0, 1), (1,), (1, 2))]
PLAIN += [(3, 1, 2, 2, 1), (3, 2, 0, 2, 2), (2, 5, 1, 1, 1)]
#: Kernel, stride, padding, additional output padding, dilation, groups.
TRANSPOSED = [
    *((2, 2, 0, 0, 1, 1), (2, 2, 0, 0, 1, 2), (3, 3, 0, 0, 1, 1), (3, 2, 1, 1, 1, 1)),
    *((3, 2, 0, 0, 1, 1), (4, 2, 1, 0, 1, 2), (3, 1, 2, 0, 2, 1), (2, 3, 0, 1, 1, 1)),
    *((1, 2, 0, 0, 1, 1), (1, 1, 0, 0, 1, 1), (7, 2, 6, 1, 1, 1)),
]


def _check(layer: nn.Module, x: Tensor, *rest: Any) -> None:
    found = volumes.convolution(x, layer.weight, layer.bias, *rest)
    wanted = layer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert found.is_contiguous()  # a view of it may follow


@pytest.mark.parametrize("elements", [1 << 24, 1], ids=["joined", "added up"])
@torch.no_grad()
def test_convolutions(elements: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(_sizes, "MOST_ELEMENTS", elements)
    for kernel, stride, padding, dilation, groups in PLAIN:
        x = torch.randn(2, 4, 8, 9, 10)
        layer = nn.Conv3d(4, 6, kernel, stride, padding, dilation, groups)
        sizes = ([stride] * 3, [padding] * 3, [dilation] * 3)
        _check(layer, x, *sizes, False, [0] * 3, groups)


@torch.no_grad()
def test_transposed_convolutions() -> None:
    for kernel, stride, padding, more, dilation, groups in TRANSPOSED:
        x = torch.randn(2, 4, 5, 6, 7)
        options = (stride, padding, more, groups, True, dilation)
        layer = nn.ConvTranspose3d(4, 6, kernel, *options)
        sizes = ([stride] * 3, [padding] * 3, [dilation] * 3)
        _check(layer, x, *sizes, True, [more] * 3, groups)


class Segmenting(nn.Module):
    """A U-Net's layers."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv3d(1, 4, 3, padding=1), norm(4)
        self.down = nn.Conv3d(4, 8, 3, 2, 1)
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.again = nn.ConvTranspose3d(8, 4, 3, 2, 1, 1)
        self.last = nn.Conv3d(12, 2, 1)
        for name, buffer in self.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        deep = self.down(x).relu()
        found: Tensor = self.last(torch.cat([x, self.up(deep), self.again(deep)], 1))
        return found.flatten(2)


@pytest.mark.parametrize("norm", [nn.BatchNorm3d, nn.InstanceNorm3d])
@torch.no_grad()
def test_volumes_are_one_delegate(norm: type[nn.Module]) -> None:
    model, x = Segmenting(norm).eval(), torch.randn(1, 1, 8, 8, 8)
    edge = lower(model, (x,), XnnpackPartitioner())
    calls = operators(edge.exported_program().graph_module)
    assert calls == {"executorch_call_delegate": 1}
    assert_same_as_eager(edge, model, (x,), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_volumes_of_any_number() -> None:
    model, x = Segmenting(nn.BatchNorm3d).eval(), torch.randn(2, 1, 8, 8, 8)
    shapes = ({0: Dim("batch", min=1, max=4)},)
    edge = lower(model, (x,), XnnpackPartitioner(), dynamic_shapes=shapes)
    calls = ((torch.randn(batch, 1, 8, 8, 8),) for batch in (2, 1, 4))
    assert_same_as_eager(edge, model, *calls, rtol=1e-4, atol=1e-4)
