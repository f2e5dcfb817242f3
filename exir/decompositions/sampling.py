"""Decompose antialiased resizing and RoI align into a weighted sum over the taps of each output."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor


def _triangle(distance: Tensor) -> Tensor:
    return (1 - distance).clamp(min=0)


def _cubic(distance: Tensor) -> Tensor:
    """Keys' cubic with a = -0.5, as PIL and PyTorch have it where they antialias."""
    near = (1.5 * distance - 2.5) * distance * distance + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def _resized(
    filter_of: Callable[[Tensor], Tensor],
    reach: int,
    x: Tensor,
    output_size: list[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    """Decompose ``aten._upsample_*2d_aa``; ``NotImplemented`` for sizes that are dynamic.

    Args:
        filter_of: Weights by the distance from an output's center, in pixels of the larger grid.
        reach: Distance from which on they are 0.
        x: Floating point, (N, C, H, W).
    """
    sizes = [*x.shape[-2:], *output_size]
    if not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    image = x.float() if x.dtype != torch.float64 else x
    for axis, size, factor in zip(
        (-2, -1), output_size, (scales_h, scales_w), strict=True
    ):
        image = _along(image, axis, size, factor, align_corners, filter_of, reach)
    return image.to(x.dtype)


def _along(
    x: Tensor,
    axis: int,
    size: int,
    factor: float | None,
    align_corners: bool,
    filter_of: Callable[[Tensor], Tensor],
    reach: int,
) -> Tensor:
    """Return ``x`` resized along one axis."""
    own = x.shape[axis]
    if align_corners:
        step = (own - 1) / (size - 1) if size > 1 else 0.0
    else:
        step = 1 / factor if factor else own / size
    width = max(step, 1.0)
    taps = min(2 * math.ceil(reach * width) + 1, own)
    places = torch.arange(size, device=x.device, dtype=x.dtype)
    centers = (places + 0.5) * step
    first = (centers - reach * width + 0.5).int().clamp(0, own - taps)
    positions = first.unsqueeze(1) + torch.arange(taps, device=x.device)
    distances = (positions + 0.5 - centers.unsqueeze(1)).abs() / width
    weights = filter_of(distances)
    weights = weights / weights.sum(1, keepdim=True)
    if axis == -2:
        return (x[..., positions, :] * weights.unsqueeze(-1)).sum(-2)
    return (x[..., positions] * weights).sum(-1)


bilinear = partial(_resized, _triangle, 1)
bicubic = partial(_resized, _cubic, 2)


def roi_align(
    x: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    """Decompose ``torchvision::roi_align``; ``NotImplemented`` where it depends on the boxes how often a bin is sampled.

    Args:
        x: Floating point, (N, C, H, W).
        rois: (K, 5): the image, and left, top, right and bottom in pixels of it.
        sampling_ratio: Samples of a bin along each axis.

    Returns:
        (K, C, pooled_height, pooled_width).
    """
    if sampling_ratio <= 0:
        return NotImplemented
    images, boxes = rois[:, 0].long(), rois[:, 1:].float() * spatial_scale
    boxes = boxes - (0.5 if aligned else 0.0)
    sizes = boxes[:, 2:] - boxes[:, :2]
    if not aligned:
        sizes = sizes.clamp(min=1)
    columns, by_column = _sampled(
        boxes[:, 0], sizes[:, 0], pooled_width, sampling_ratio, x.shape[3]
    )
    rows, by_row = _sampled(
        boxes[:, 1], sizes[:, 1], pooled_height, sampling_ratio, x.shape[2]
    )
    channels = torch.arange(x.shape[1], device=x.device)
    taps = x.float()[
        images.view(-1, 1, 1, 1, 1, 1),
        channels.view(1, -1, 1, 1, 1, 1),
        rows[:, None, :, None, :, None],
        columns[:, None, None, :, None, :],
    ]
    weights = by_row[:, None, :, None, :, None] * by_column[:, None, None, :, None, :]
    return (taps * weights).sum((-2, -1)).to(x.dtype)


def _sampled(
    start: Tensor, size: Tensor, bins: int, samples: int, limit: int
) -> tuple[Tensor, Tensor]:
    """Return where each bin of each box is sampled along an axis, two pixels a sample, and the weights: (K, bins, 2 samples)."""
    shares = (torch.arange(samples, device=start.device) + 0.5) / samples
    steps = torch.arange(bins, device=start.device).unsqueeze(1) + shares
    at = start.view(-1, 1, 1) + steps * (size / bins).view(-1, 1, 1)
    inside = (at >= -1) & (at <= limit)
    at = at.clamp(0, limit - 1)
    low = at.floor()
    part = at - low
    places = torch.stack([low, (low + 1).clamp(max=limit - 1)], -1).long()
    weights = torch.stack([1 - part, part], -1) * inside.unsqueeze(-1) / samples
    return places.flatten(-2), weights.flatten(-2)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by operator; torchvision's where it is imported."""
    of_images = getattr(torch.ops.torchvision, "roi_align", None)
    return {
        **({} if of_images is None else {of_images.default: roi_align}),
        torch.ops.aten._upsample_bilinear2d_aa.default: bilinear,
        torch.ops.aten._upsample_bicubic2d_aa.default: bicubic,
    }
