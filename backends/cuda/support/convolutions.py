"""Decompose convolutions into those that Inductor has a template for: of two or three dimensions, dense, not transposed.

Of one dimension they have a height of 1. A dilated one is one over each phase of the dilation, phases in the batch. A
transposed one has a channel for each phase of the stride, whose pixels are shuffled: no zeros are multiplied. One of three
dimensions and a window of 1 is one of two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from executorch.backends.cuda._unfold_decomposition import (
    per_axis,
    pointwise_of_volumes,
)
from torch import Tensor
from torch.nn import functional as F

_convolution = torch.ops.aten.convolution.default


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    """Decompose ``aten.convolution``; ``NotImplemented`` where it has a template as it is.

    Args:
        x: Floating point, (N, C, *sizes) of one to three dimensions.
        weight: (outputs, C / groups, *window), or (C, outputs / groups, *window) if ``transposed``.
    """
    axes = weight.dim() - 2
    if x.dim() != weight.dim() or not x.is_floating_point():
        return NotImplemented
    stride, padding, dilation, output_padding = per_axis(
        axes, stride, padding, dilation, output_padding
    )
    if transposed:
        if axes > 1:
            return _transposed(
                x, weight, bias, stride, padding, dilation, output_padding, groups
            )
    elif any(step > 1 for step in dilation):
        if axes > 1:
            return _dilated(x, weight, bias, stride, padding, dilation, groups)
    elif axes == 3 and _is_pointwise(weight, stride, padding, groups):
        return pointwise_of_volumes(x, weight, bias)
    elif axes > 1 or (
        weight.shape[1] == 1 < groups == weight.shape[0] and _depthwise()
    ):
        return NotImplemented
    return _convolution(
        x.unsqueeze(2),
        weight.unsqueeze(2),
        bias,
        [1, *stride],
        [0, *padding],
        [1, *dilation],
        transposed,
        [0, *output_padding],
        groups,
    ).squeeze(2)


def _is_pointwise(
    weight: Tensor, stride: list[int], padding: list[int], groups: int
) -> bool:
    window = [*weight.shape[2:]]
    return {*window, *stride, groups} == {1} and not any(padding)


def _depthwise() -> bool:
    """Whether Inductor has a template for depthwise convolutions of one dimension."""
    from torch._inductor.kernel import conv

    return hasattr(conv, "depthwise_conv1d_template")


def _dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: list[int],
    groups: int,
) -> Tensor:
    ones, none = [1] * len(padding), [0] * len(padding)
    return _convolution(x, weight, bias, ones, padding, ones, False, none, groups)


def _dilated(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """The result at ``q * dilation + phase`` reads ``x[(q + tap) * dilation + phase]``: one phase of ``x``."""
    axes = range(len(stride))
    sizes = [x.shape[2 + axis] + 2 * padding[axis] for axis in axes]
    rows = [-(-size // step) for size, step in zip(sizes, dilation, strict=True)]
    behind = [rows[axis] * dilation[axis] - sizes[axis] for axis in axes]
    paddings = [(n, n + more) for n, more in zip(padding, behind, strict=True)]
    x = F.pad(x, [side for pair in reversed(paddings) for side in pair])
    batch, channels = x.shape[:2]
    split = [part for axis in axes for part in (rows[axis], dilation[axis])]
    pixels, phases = [2 + 2 * axis for axis in axes], [3 + 2 * axis for axis in axes]
    x = x.reshape(batch, channels, *split).permute(*phases, 0, 1, *pixels)
    result = _dense(
        x.reshape(-1, channels, *rows),
        weight,
        bias,
        [0] * len(stride),
        groups,
    )
    result = result.reshape(*dilation, batch, *result.shape[1:])
    first = len(stride)
    pairs = [place for axis in axes for place in (first + 2 + axis, axis)]
    made = [result.shape[first + 2 + axis] * dilation[axis] for axis in axes]
    result = result.permute(first, first + 1, *pairs).reshape(batch, -1, *made)
    for axis in axes:
        size = sizes[axis] - dilation[axis] * (weight.shape[2 + axis] - 1)
        result = result.narrow(2 + axis, 0, size)
        if stride[axis] > 1:
            result = result[
                (slice(None),) * (2 + axis) + (slice(None, None, stride[axis]),)
            ]
    return result


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """The result at ``q * stride + phase`` is the sum over ``m`` of ``x[q - m]`` by ``weight[m * stride + phase]``."""
    phases, paddings, first, sizes = weight, [], [], []
    for axis, (step, cut) in enumerate(zip(stride, padding, strict=True)):
        phases = _spread(phases, 2 + axis, dilation[axis])
        length = phases.shape[2 + axis]
        taps = math.ceil(length / step)
        begin = cut // step  # the first q that is asked for
        behind = math.ceil((length + output_padding[axis] - cut - step) / step)
        phases = _pad_behind(phases, 2 + axis, taps * step - length)
        paddings.append((taps - 1 - begin, behind))
        first.append(cut - begin * step)
        size = (x.shape[2 + axis] - 1) * step + length - 2 * cut
        sizes.append(size + output_padding[axis])
    around = [before for before, _ in paddings]
    if not all(before == right >= 0 for before, right in paddings):
        x = F.pad(x, [side for pair in reversed(paddings) for side in pair])
        around = [0] * len(paddings)
    result = _dense(x, _as_channels(phases, stride, groups), None, around, groups)
    result = _shuffle(result, stride)
    for axis, (start, size) in enumerate(zip(first, sizes, strict=True)):
        result = result.narrow(2 + axis, start, size)
    return result if bias is None else result + bias.view(-1, *[1] * len(stride))


def _pad_behind(x: Tensor, dim: int, count: int) -> Tensor:
    return F.pad(x, [0] * (2 * (x.dim() - 1 - dim) + 1) + [count]) if count else x


def _spread(x: Tensor, dim: int, step: int) -> Tensor:
    """Put ``step - 1`` zeros between neighbours."""
    if step == 1:
        return x
    size = x.shape[dim]
    spread = _pad_behind(x.unsqueeze(dim + 1), dim + 1, step - 1)
    return spread.flatten(dim, dim + 1).narrow(dim, 0, (size - 1) * step + 1)


def _as_channels(weight: Tensor, stride: list[int], groups: int) -> Tensor:
    """(C, outputs / groups, *window) to (outputs * phases, C / groups, *window / stride), flipped."""
    inputs, outputs, *window = weight.shape
    pairs = zip(window, stride, strict=True)
    split = [part for size, step in pairs for part in (size // step, step)]
    weight = weight.reshape(groups, inputs // groups, outputs, *split)
    taps = [3 + 2 * axis for axis in range(len(window))]
    phases = [tap + 1 for tap in taps]
    weight = weight.flip(taps).permute(0, 2, *phases, 1, *taps)
    return weight.reshape(-1, inputs // groups, *split[::2])


def _shuffle(x: Tensor, stride: list[int]) -> Tensor:
    """(N, outputs * phases, *sizes) to (N, outputs, *sizes * stride)."""
    axes, (batch, channels, *sizes) = len(stride), x.shape
    x = x.reshape(batch, channels // math.prod(stride), *stride, *sizes)
    pairs = [place for axis in range(axes) for place in (2 + axes + axis, 2 + axis)]
    sizes = [size * step for size, step in zip(sizes, stride, strict=True)]
    return x.permute(0, 1, *pairs).reshape(*x.shape[:2], *sizes)
