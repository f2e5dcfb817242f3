"""Decompose convolutions and pools of three dimensions into those of two, which ExecuTorch's kernels and XNNPACK have.

ExecuTorch's convolution refuses five dimensions when it is called, and of the pools it has no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Decompose ``aten.convolution`` of (N, C, D, H, W): a convolution of slices for each tap along D, and their sum."""
    if x.ndim != 5:
        return NotImplemented
    taps = weight.shape[2]
    out = weight.shape[1] * groups if transposed else weight.shape[0]
    options = [_three(each) for each in (stride, padding, dilation)]
    step, pad, apart = (each[0] for each in options)
    plane = [each[1:] for each in options]
    ends = _three(output_padding)
    slices = x.permute(0, 2, 1, 3, 4)
    depth, reach = slices.shape[1], apart * (taps - 1)
    if transposed:
        size = (depth - 1) * step - 2 * pad + reach + 1 + ends[0]
    else:
        size = (depth + 2 * pad - reach - 1) // step + 1
        slices = _aten.constant_pad_nd(slices, [0] * 6 + [pad, pad])

    found: Any = None
    for tap in range(taps):
        begin = tap * apart
        taken = slices
        if not transposed:
            taken = slices[:, begin : begin + (size - 1) * step + 1 : step]
        images = taken.reshape(-1, *taken.shape[2:])
        part = _aten.convolution(
            images, weight[:, :, tap], None, *plane, transposed, ends[1:], groups
        )
        part = part.reshape(-1, taken.shape[1], out, *part.shape[2:])
        if transposed:
            part = _placed(part, step, begin - pad, size)
        found = part if found is None else found + part
    found = found.permute(0, 2, 1, 3, 4)
    return found if bias is None else found + bias.view(-1, 1, 1, 1)


def _placed(slices: Tensor, step: int, first: int, size: int) -> Tensor:
    """Return ``size`` slices along dimension 1: these ones every ``step`` from ``first`` on, and zeros."""
    count = slices.shape[1]
    if step > 1:
        spread = slices.unsqueeze(2)
        spread = _aten.constant_pad_nd(spread, [0] * 6 + [0, step - 1])
        slices = spread.reshape(-1, count * step, *slices.shape[2:])
    behind = size - first - slices.shape[1]
    return _aten.constant_pad_nd(slices, [0] * 6 + [first, behind])


def avg_pool3d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Decompose ``aten.avg_pool3d``: over planes, then over depth."""
    kernel, pads = _three(kernel_size), _three(padding)
    steps = _three(stride) if len(stride) else kernel
    divisors = (None, None) if divisor_override is None else (1, divisor_override)
    rest = (ceil_mode, count_include_pad)
    planes = x.reshape(-1, *x.shape[-3:])
    planes = _aten.avg_pool2d(
        planes, kernel[1:], steps[1:], pads[1:], *rest, divisors[0]
    )
    lines = planes.flatten(2).unsqueeze(1)
    deep = [[kernel[0], 1], [steps[0], 1], [pads[0], 0]]
    lines = _aten.avg_pool2d(lines, *deep, *rest, divisors[1])
    return lines.reshape(*x.shape[:-3], lines.shape[2], *planes.shape[2:])


def max_pool3d(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Decompose ``aten.max_pool3d_with_indices``: over planes, then over depth."""
    kernel, pads, apart = _three(kernel_size), _three(padding), _three(dilation)
    steps = _three(stride) if len(stride) else kernel
    pool = _aten.max_pool2d_with_indices
    planes = x.reshape(-1, *x.shape[-3:])
    flat = (kernel[1:], steps[1:], pads[1:], apart[1:], ceil_mode)
    planes, inner = pool(planes, *flat)
    lines = planes.flatten(2).unsqueeze(1)
    deep = [[kernel[0], 1], [steps[0], 1], [pads[0], 0], [apart[0], 1]]
    lines, outer = pool(lines, *deep, ceil_mode)
    width = lines.shape[3]
    depth = outer.div(width, rounding_mode="floor").flatten(1)
    indices = inner.flatten(1).gather(1, outer.flatten(1))
    indices = indices + depth * (x.shape[-2] * x.shape[-1])
    shape = (*x.shape[:-3], lines.shape[2], *planes.shape[2:])
    return lines.reshape(shape), indices.reshape(shape)


def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Decompose ``aten._adaptive_avg_pool3d``: over planes, then over depth."""
    planes = x.reshape(-1, *x.shape[-3:])
    planes = _aten._adaptive_avg_pool2d(planes, [*output_size[1:]])
    lines = planes.flatten(2).unsqueeze(1)
    lines = _aten._adaptive_avg_pool2d(lines, [output_size[0], lines.shape[3]])
    return lines.reshape(*x.shape[:-3], *output_size)


def _three(numbers: Sequence[int]) -> list[int]:
    return [*numbers] if len(numbers) == 3 else [numbers[0]] * 3
