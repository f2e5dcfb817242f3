"""Decompose cumulative operators into log2(n) elementwise steps (Hillis and Steele)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from executorch.exir.decompositions._sizes import upper_bound
from torch import Tensor

#: A value along with what goes with it, as its index.
_Scanned = tuple[Tensor, ...]


def _scanned(
    values: _Scanned,
    dim: int,
    neutral: tuple[float, ...],
    combine: Callable[[_Scanned, _Scanned], _Scanned],
) -> Any:
    """Return the inclusive scan of ``values`` along ``dim``; ``NotImplemented`` for a size that nothing bounds.

    Args:
        values: Tensors of one shape.
        neutral: Neutral element of ``combine``.
        combine: Of what comes before, and what comes after it.
    """
    size = values[0].shape[dim]
    largest = upper_bound(size)
    if largest is None:
        return NotImplemented
    behind = values[0].ndim - 1 - dim % values[0].ndim
    for step in range(max(largest - 1, 0).bit_length()):
        pads = [0, 0] * behind + [1 << step, 0]
        before = tuple(
            torch.constant_pad_nd(value, pads, fill).narrow(dim, 0, size)
            for value, fill in zip(values, neutral, strict=True)
        )
        values = combine(before, values)
    return values


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Decompose ``aten.cumprod``, with integers in int64."""
    if dtype is None:
        dtype = x.dtype if x.is_floating_point() else torch.int64
    x = x.to(dtype)
    if x.ndim == 0:
        return x.clone()
    scanned = _scanned((x,), dim, (1,), lambda a, b: (a[0] * b[0],))
    return scanned if scanned is NotImplemented else scanned[0]


def logcumsumexp(x: Tensor, dim: int) -> Any:
    """Decompose ``aten.logcumsumexp`` of real numbers."""
    if not x.is_floating_point():
        return NotImplemented
    if x.ndim == 0:
        return x.clone()

    def combine(before: _Scanned, own: _Scanned) -> _Scanned:
        largest = torch.maximum(before[0], own[0])
        # The difference of two infinities is no number.
        shift = torch.where(largest.isinf(), 0.0, largest)
        total = (before[0] - shift).exp() + (own[0] - shift).exp()
        return (total.log() + shift,)

    scanned = _scanned((x,), dim, (-math.inf,), combine)
    return scanned if scanned is NotImplemented else scanned[0]


def cummax(x: Tensor, dim: int) -> Any:
    """Decompose ``aten.cummax``: of equal values the last one's index, NaN is the largest."""
    return _extreme(x, dim, torch.ge, largest=True)


def cummin(x: Tensor, dim: int) -> Any:
    """Decompose ``aten.cummin``: of equal values the last one's index, NaN is the smallest."""
    return _extreme(x, dim, torch.le, largest=False)


def _extreme(
    x: Tensor, dim: int, keeps: Callable[[Tensor, Tensor], Tensor], largest: bool
) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    if x.ndim == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    places = torch.arange(x.shape[dim], device=x.device)
    shape = [1] * x.ndim
    shape[dim] = -1
    places = places.view(shape).expand(x.shape)
    if x.is_floating_point():
        neutral = -math.inf if largest else math.inf
    else:
        limits = torch.iinfo(x.dtype)
        neutral = limits.min if largest else limits.max

    def combine(before: _Scanned, own: _Scanned) -> _Scanned:
        keep_own = keeps(own[0], before[0])
        if x.is_floating_point():
            keep_own = keep_own.logical_or(own[0].isnan())
        values = torch.where(keep_own, own[0], before[0])
        return values, torch.where(keep_own, own[1], before[1])

    return _scanned((x, places), dim, (neutral, 0), combine)
