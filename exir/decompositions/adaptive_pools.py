"""Decompose adaptive max pools into max pools of fixed windows, which ExecuTorch has a kernel of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def adaptive_max_pool2d(x: Tensor, output_size: Sequence[int]) -> Any:
    """Decompose ``aten.adaptive_max_pool2d``: windows of different sizes are gathered, padded to the longest.

    A shorter window repeats its last row or column, which changes no maximum. A dynamic height or width is only supported
    for an output size of 1.
    """
    sizes = x.shape[-2:]
    if [*output_size] == [1, 1]:
        values, indices = x.flatten(-2).max(-1)
        shape = (*x.shape[:-2], 1, 1)
        return values.reshape(shape), indices.reshape(shape)
    windows = [_windows(*pair) for pair in zip(sizes, output_size, strict=True)]
    if None in windows:
        return NotImplemented
    gathered, kernel = x, []
    places: list[Tensor | None] = []
    for dim, (length, positions) in zip((-2, -1), windows, strict=True):  # type: ignore[misc]
        if positions is not None:
            gathered = gathered.index_select(dim, positions)
        kernel.append(length)
        places.append(positions)
    values, indices = _aten.max_pool2d_with_indices(gathered, kernel, kernel)
    if any(positions is not None for positions in places):
        width = gathered.shape[-1]
        coordinates = [
            indices.div(width, rounding_mode="floor"),
            indices.remainder(width),
        ]
        row, column = (
            indices_in_window if positions is None else positions[indices_in_window]
            for indices_in_window, positions in zip(coordinates, places, strict=True)
        )
        indices = row * sizes[1] + column
    return values, indices


def adaptive_max_pool3d(x: Tensor, output_size: Sequence[int]) -> Any:
    """Decompose ``aten.adaptive_max_pool3d``: over planes, then over depth."""
    planes = adaptive_max_pool2d(x.reshape(-1, *x.shape[-3:]), output_size[1:])
    if planes is NotImplemented:
        return NotImplemented
    values, inner = planes
    flat = values.flatten(2).unsqueeze(1)
    lines = adaptive_max_pool2d(flat, [output_size[0], flat.shape[3]])
    if lines is NotImplemented:
        return NotImplemented
    maxima, outer = lines
    depth = outer.div(flat.shape[3], rounding_mode="floor").flatten(1)
    indices = inner.flatten(1).gather(1, outer.flatten(1))
    indices = indices + depth * (x.shape[-2] * x.shape[-1])
    shape = (*x.shape[:-3], *output_size)
    return maxima.reshape(shape), indices.reshape(shape)


def _windows(
    size: int | torch.SymInt, count: int | torch.SymInt
) -> tuple[int, Tensor | None] | None:
    """Return the length of the windows along a dimension, and the indices to gather for them.

    Returns:
        The length; the places, those of the first window first, None if all are read once, in order. None of a dynamic size.
    """
    if not isinstance(size, int) or not isinstance(count, int):
        return None
    if size % count == 0:
        return size // count, None
    length = max(-(-(i + 1) * size // count) - i * size // count for i in range(count))
    window = torch.arange(count)
    begins = (window * size).div(count, rounding_mode="floor")
    lasts = (window * size + (size - 1)).div(count, rounding_mode="floor")
    places = begins.unsqueeze(1) + torch.arange(length)
    return length, torch.minimum(places, lasts.unsqueeze(1)).flatten()
