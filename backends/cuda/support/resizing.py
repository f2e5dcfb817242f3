"""Decompose antialiased resizing into a weighted sum over the taps of each output, along one axis and the other."""

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
    found = x.float() if x.dtype != torch.float64 else x
    for axis, size, factor in zip(
        (-2, -1), output_size, (scales_h, scales_w), strict=True
    ):
        found = _along(found, axis, size, factor, align_corners, filter_of, reach)
    return found.to(x.dtype)


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
    taken = first.unsqueeze(1) + torch.arange(taps, device=x.device)
    distances = (taken + 0.5 - centers.unsqueeze(1)).abs() / width
    weights = filter_of(distances)
    weights = weights / weights.sum(1, keepdim=True)
    if axis == -2:
        return (x[..., taken, :] * weights.unsqueeze(-1)).sum(-2)
    return (x[..., taken] * weights).sum(-1)


bilinear = partial(_resized, _triangle, 1)
bicubic = partial(_resized, _cubic, 2)
