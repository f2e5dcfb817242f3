"""Convolutions of few input channels, with the window's columns as channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.cuda import _unfold_decomposition
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from .conftest import delegates, needs_compilers


@given(
    st.integers(1, 3),
    st.integers(1, 7),
    *[st.tuples(*[st.integers(1, 3)] * 3)] * 3,
    st.tuples(*[st.integers(0, 2)] * 3),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_values(sides, depth, window, stride, dilation, padding, dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, depth, *(9, 11, 7)[:sides]).to(dtype)
    weight = torch.randn(5, depth, *window[:sides]).to(dtype)
    bias = torch.randn(5).to(dtype)
    where = [list(each[:sides]) for each in (stride, padding, dilation)]
    result = _unfold_decomposition.convolution(
        x, weight, bias, *where, False, [0] * sides, 1
    )
    if max(weight.shape[2:]) == 1:
        assert result is NotImplemented
        return
    convolve = (F.conv1d, F.conv2d, F.conv3d)[sides - 1]
    expected = convolve(x.float(), weight.float(), bias.float(), *where).to(dtype)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "shape, stride, channels",
    [
        ((32, 3, 7, 7), 2, 21),
        ((32, 3, 3, 3), 1, 27),
        ((32, 3, 16, 16), 16, 768),
        ((32, 1, 1, 10), 5, 10),
        ((32, 8, 3, 3), 1, 8),
        ((32, 3, 1, 1), 1, 3),
    ],
)
def test_channels_fill_a_tile(
    shape: tuple[int, ...], stride: int, channels: int
) -> None:
    """With no more of the window than that takes, as what overlaps is read as often; all of a patch."""

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> Any:
        where = [[each, each] for each in (stride, 0, 1, 0)]
        *where, outside = where
        result = _unfold_decomposition.convolution(
            x, weight, None, *where, False, outside, 1
        )
        return x if result is NotImplemented else result

    x, weight = torch.ones(2, shape[1], 32, 32), torch.ones(shape)
    graph = make_fx(convolved, tracing_mode="fake")(x, weight).graph
    found = graph.find_nodes(
        op="call_function", target=torch.ops.aten.convolution.default
    )
    sizes = [node.args[0].meta["val"].shape[1] for node in found]
    assert sizes == ([] if channels == shape[1] else [channels])
    for node in found:
        for each in node.args[:2]:
            assert each.meta["val"].stride(1) == 1  # channels last


@needs_compilers
@pytest.mark.builds
def test_a_first_convolution_is_a_delegate_for_each_size(lower) -> None:
    from torch.export import Dim

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 7, 2, 3), torch.nn.ReLU())
    batch, height = Dim("batch", max=4), Dim("height", min=8, max=64)
    shapes = ({0: batch, 2: height},)
    example = (torch.randn(2, 3, 32, 24),)
    edge = lower(model, example, dynamic_shapes=shapes)
    assert len(delegates(edge)) == 1
