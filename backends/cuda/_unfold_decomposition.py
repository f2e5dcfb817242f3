"""Decompose convolutions of few input channels: unfold the window into channels, so that a tile multiplies full rows.

A tile multiplies at least 16 channels of a pixel of the window at a time. A network's first convolution has 3 of an image,
or 1 of a waveform, and its tiles multiply zeros otherwise. The first convolution of a ResNet takes 71 us on an H100, of
(16, 3, 112, 112) to 32 channels in float16, and 14 with the columns of its window as channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_convolution = torch.ops.aten.convolution.default

#: Channels that a tile of a matmul has at least, and fewer than which leave more than half of it empty.
_LEAST, _FEW = 16, 8


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
    """Decompose ``aten.convolution``; ``NotImplemented`` where its channels fill a tile.

    Args:
        x: Floating point, (N, C, *sizes).
        weight: (outputs, C, *window).
    """
    _, depth, *window = weight.shape
    if transposed or groups > 1 or depth >= _FEW or x.dim() != weight.dim():
        return NotImplemented
    if not x.is_floating_point() or all(size == 1 for size in window):
        return NotImplemented
    parameters = per_axis(len(window), stride, padding, dilation)
    # The innermost dimension of the window first; all of a patch, which overlaps no other.
    for axis in reversed(range(len(window))):
        disjoint = x.shape[1] > depth and parameters[0][axis] >= window[axis]
        if window[axis] > 1 and (x.shape[1] < _LEAST or disjoint):
            x, weight = _unfold(
                x, weight, axis, *(parameter[axis] for parameter in parameters)
            )
            for parameter, neutral in zip(parameters, (1, 0, 1), strict=True):
                parameter[axis] = neutral
    plain = {*weight.shape[2:], *parameters[0]} == {1} and not any(parameters[1])
    if len(window) == 3 and plain:
        return pointwise_of_volumes(x, weight, bias)
    return _convolution(x, weight, bias, *parameters, False, [0] * len(window), groups)


def pointwise_of_volumes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a convolution of three dimensions with a window of 1, as one of two dimensions.

    Of three, Inductor chooses a matmul of PyTorch's, which has no name in C++ ("Expected name is not None").
    """
    ones, none = [1, 1], [0, 0]
    images, window = x.flatten(3), weight.squeeze(4)
    summed = _convolution(images, window, bias, ones, none, ones, False, none, 1)
    return summed.reshape(*summed.shape[:3], *x.shape[3:])


def per_axis(axes: int, *parameters: list[int]) -> list[list[int]]:
    """Return parameters of a convolution with a number for each axis, where one may stand for all."""
    return [values * axes if len(values) == 1 else [*values] for values in parameters]


def _unfold(
    x: Tensor, weight: Tensor, axis: int, stride: int, padding: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """Return image and weight with a dimension of the window as channels, which are contiguous in memory.

    Returns:
        (N, window * C, ...) and (outputs, window * C, ...), that dimension of which is 1.
    """
    dim = 2 + axis
    length = weight.shape[dim]
    if padding:
        behind = x.dim() - 1 - dim
        x = F.pad(x, [0, 0] * behind + [padding, padding])
    places = x.unfold(dim, (length - 1) * dilation + 1, stride)[..., ::dilation]
    return _as_channels(places), _as_channels(weight.movedim(dim, -1).unsqueeze(dim))


def _as_channels(x: Tensor) -> Tensor:
    """(N, C, *sizes, window) to (N, window * C, *sizes), channels last."""
    return x.movedim(1, -1).flatten(-2).movedim(-1, 1)
