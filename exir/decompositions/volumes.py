"""Decompose convolutions and pools of three dimensions into those of two, which ExecuTorch's kernels and XNNPACK have.

ExecuTorch's convolution refuses five dimensions when it is called, and of the pools it has no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from executorch.exir.decompositions._sizes import fits
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
    """Decompose ``aten.convolution`` of (N, C, D, H, W): a 2D convolution of slices, with the slices that the taps along D read as channels.

    Transposed, in groups, or where that is too large: a convolution of slices for each tap, and their sum.
    """
    if x.ndim != 5:
        return NotImplemented
    taps = weight.shape[2]
    out = weight.shape[1] * groups if transposed else weight.shape[0]
    options = [_three(option) for option in (stride, padding, dilation)]
    step, pad, spacing = (option[0] for option in options)
    plane = [option[1:] for option in options]
    ends = _three(output_padding)
    slices = x.permute(0, 2, 1, 3, 4)
    depth, reach = slices.shape[1], spacing * (taps - 1)
    if transposed:
        size = (depth - 1) * step - 2 * pad + reach + 1 + ends[0]
        reached = [slices] * taps
    else:
        size = (depth + 2 * pad - reach - 1) // step + 1
        behind = pad if step == 1 else max(pad, reach + size * step - depth - pad)
        slices = _padded(slices, pad, behind)
        reached = [_every(slices, tap * spacing, size, step) for tap in range(taps)]

    def convolved(slices: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        images = slices.reshape(-1, *slices.shape[2:])
        rest = (*plane, transposed, ends[1:], groups)
        result = _aten.convolution(images, weight, bias, *rest)
        return result.reshape(-1, slices.shape[1], out, *result.shape[2:])

    if not transposed and groups == 1 and fits(*reached[0].shape, taps):
        channels = weight.permute(0, 2, 1, 3, 4).flatten(1, 2)
        # Contiguous as the convolution's own result: a view of it may follow.
        result = convolved(_joined(reached), channels, bias)
        return result.permute(0, 2, 1, 3, 4).contiguous()
    parts = [
        convolved(reached_slices, weight[:, :, tap], None)
        for tap, reached_slices in enumerate(reached)
    ]
    if transposed and pad == ends[0] == 0 and taps == step and spacing == 1:
        between = _joined([part.unsqueeze(2) for part in parts])
        result = between.reshape(-1, size, *between.shape[3:])
    else:
        if transposed:
            parts = [
                _placed(part, step, tap * spacing - pad, size)
                for tap, part in enumerate(parts)
            ]
        result = sum(parts[1:], parts[0])
    result = result.permute(0, 2, 1, 3, 4).contiguous()
    return result if bias is None else result + bias.view(-1, 1, 1, 1)


def _every(slices: Tensor, first: int, count: Any, step: int) -> Tensor:
    """Return slices along dimension 1, every ``step`` from ``first`` on: by views, as XNNPACK slices by no step."""
    if step == 1:
        return slices[:, first : first + count]
    slices_read = slices[:, first : first + count * step]
    return slices_read.reshape(-1, count, step, *slices.shape[2:]).select(2, 0)


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors along dimension 2, a few at a time, which is XNNPACK's limit."""
    while len(parts) > 1:
        few = [parts[i : i + _FEW] for i in range(0, len(parts), _FEW)]
        parts = [torch.cat(run, 2) if len(run) > 1 else run[0] for run in few]
    return parts[0]


def _placed(slices: Tensor, step: int, first: int, size: int) -> Tensor:
    """Return ``size`` slices along dimension 1: these ones every ``step`` from ``first`` on, and zeros."""
    count = slices.shape[1]
    if step > 1:
        spread = slices.unsqueeze(2)
        spread = _aten.constant_pad_nd(spread, [0] * 6 + [0, step - 1])
        slices = spread.reshape(-1, count * step, *slices.shape[2:])
    if first < 0:
        slices, first = slices[:, -first:], 0
    behind = size - first - slices.shape[1]
    if isinstance(behind, int) and behind < 0:
        slices, behind = slices[:, :behind], 0
    return _padded(slices, first, behind)


def _padded(slices: Tensor, before: Any, behind: Any) -> Tensor:
    if isinstance(behind, int) and before == behind == 0:
        return slices
    return _aten.constant_pad_nd(slices, [0] * 6 + [before, behind])


#: Tensors that XNNPACK concatenates at once.
_FEW = 5


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
    kernel, pads, spacing = _three(kernel_size), _three(padding), _three(dilation)
    steps = _three(stride) if len(stride) else kernel
    pool = _aten.max_pool2d_with_indices
    planes = x.reshape(-1, *x.shape[-3:])
    flat = (kernel[1:], steps[1:], pads[1:], spacing[1:], ceil_mode)
    planes, inner = pool(planes, *flat)
    lines = planes.flatten(2).unsqueeze(1)
    deep = [[kernel[0], 1], [steps[0], 1], [pads[0], 0], [spacing[0], 1]]
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


def _three(per_axis: Sequence[int]) -> list[int]:
    return [*per_axis] if len(per_axis) == 3 else [per_axis[0]] * 3
