"""Convolutions that Inductor has no template for are decomposed into those it has, with eager's values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.cuda.support.decompositions import decompositions
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch._inductor.kernel import conv
from torch.fx.experimental.proxy_tensor import make_fx

CONVOLUTION = torch.ops.aten.convolution.default
TABLE = {CONVOLUTION: decompositions()[CONVOLUTION]}


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, ...]:
    """What ``aten.convolution`` takes, of any window, stride, padding and dilation that eager mode takes."""
    axes, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    transposed = draw(st.booleans())

    def each(least: int, most: int) -> list[int]:
        numbers = st.integers(least, most)
        return draw(st.lists(numbers, min_size=axes, max_size=axes))

    sizes, window, stride, dilation = each(1, 5), each(1, 5), each(1, 3), each(1, 3)
    reach = [step * (n - 1) + 1 for n, step in zip(window, dilation, strict=True)]
    padding = [draw(st.integers(0, n)) for n in reach]
    more = [0] * axes
    if transposed:
        most = map(max, zip(stride, dilation, strict=True))
        more = [draw(st.integers(0, n - 1)) for n in most]
        whole = zip(sizes, stride, padding, reach, more, strict=True)
        assume(all((n - 1) * s - 2 * p + r + o > 0 for n, s, p, r, o in whole))
    else:
        whole = zip(sizes, padding, reach, strict=True)
        assume(all(n + 2 * p >= r for n, p, r in whole))
    x = torch.randn(2, 2 * groups, *sizes, dtype=torch.float64)
    ends = (2 * groups, 3) if transposed else (3 * groups, 2)
    weight = torch.randn(*ends, *window, dtype=torch.float64)
    bias = torch.randn(3 * groups).double() if draw(st.booleans()) else None
    return x, weight, bias, stride, padding, dilation, transposed, more, groups


@given(call=calls())
def test_values_and_templates(call: tuple[Any, ...]) -> None:
    x, weight, bias, *rest = call
    tensors = [x, weight, *([] if bias is None else [bias])]

    def apply(*values: Tensor) -> Tensor:
        return CONVOLUTION(*values, *[None] * (3 - len(values)), *rest)

    graph = make_fx(apply, decomposition_table=TABLE)(*tensors)
    torch.testing.assert_close(graph(*tensors), apply(*tensors))
    for node in graph.graph.find_nodes(op="call_function", target=CONVOLUTION):
        _, kernel, _, stride, padding, dilation, transposed, _, groups = node.args
        strided = {*stride} != {1} or any(padding)
        assert kernel.meta["val"].dim() > 3
        assert set(dilation) == {1} and not transposed
        assert kernel.meta["val"].shape[2:] != (1, 1, 1) or groups > 1 or strided


@pytest.mark.parametrize("shape", [(3, 2, 3, 3), (3, 2, 1, 3, 3), (4, 1, 5)], ids=str)
def test_those_with_a_template_stay(shape: tuple[int, ...]) -> None:
    """Of one dimension depthwise ones, where Inductor has that template."""
    axes, groups = len(shape) - 2, 4 if shape[1] == 1 else 1
    x, weight = torch.randn(1, shape[1] * groups, *[6] * axes), torch.randn(shape)
    rest = ([1] * axes, [0] * axes, [1] * axes, False, [0] * axes, groups)
    stays = axes > 1 or hasattr(conv, "depthwise_conv1d_template")
    assert (TABLE[CONVOLUTION](x, weight, None, *rest) is NotImplemented) == stays
