"""Decompose sorting into comparisons of all pairs, look-ups in sorted values into counts, and order statistics into sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.exir.decompositions._sizes import fits
from torch import Tensor


def sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """Decompose ``aten.sort.stable``; ``NotImplemented`` where the pairs are too many."""
    return sort(x, dim, descending)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Decompose ``aten.sort`` to a stable one: a value's position is the number of values that precede it."""
    if x.ndim == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    if not fits(*x.shape, x.shape[dim]):
        return NotImplemented
    x = x.movedim(dim, -1)
    own, other = x.unsqueeze(-1), x.unsqueeze(-2)
    first, equal = (other > own if descending else other < own), other == own
    if x.is_floating_point():
        # NaN is the largest.
        lesser, greater = (own, other) if descending else (other, own)
        first = first | (greater.isnan() & lesser.isnan().logical_not())
        equal = equal | (own.isnan() & other.isnan())
    places = torch.arange(x.shape[-1], device=x.device)
    equal = equal & (places < places.unsqueeze(-1))
    rank = (first | equal).sum(-1)
    values = torch.zeros_like(x).scatter(-1, rank, x)
    indices = torch.zeros_like(rank).scatter(-1, rank, places.expand(rank.shape))
    return values.movedim(-1, dim), indices.movedim(-1, dim)


def searchsorted(
    sequence: Tensor,
    values: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """Decompose ``aten.searchsorted``; ``NotImplemented`` where the pairs are too many."""
    if sorter is not None:
        sequence = sequence.gather(-1, sorter)
    right = right or side == "right"
    dtype = torch.int32 if out_int32 else torch.int64
    if not isinstance(values, Tensor):
        after = sequence > values if right else sequence >= values
        return after.logical_not().sum(-1).to(dtype)
    if not fits(*values.shape, sequence.shape[-1]):
        return NotImplemented
    if sequence.ndim > 1:
        sequence = sequence.unsqueeze(-2)
    values = values.unsqueeze(-1)
    # NaN goes behind all: it compares as neither.
    after = sequence > values if right else sequence >= values
    return after.logical_not().sum(-1).to(dtype)


def bucketize(
    values: Tensor | float,
    boundaries: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Any:
    """Decompose ``aten.bucketize``; ``NotImplemented`` where the pairs are too many."""
    return searchsorted(boundaries, values, out_int32=out_int32, right=right)


def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Decompose ``aten.median.dim``: NaN if there is any."""

    def pick(values: Tensor, ordered: Tensor) -> Tensor:
        size = values.shape[dim]
        last, middle = (
            ordered.narrow(dim, at, 1) for at in (size - 1, (size - 1) // 2)
        )
        if not x.is_floating_point():
            return middle
        return torch.where(values.narrow(dim, size - 1, 1).isnan(), last, middle)

    return _picked(x, dim, keepdim, pick)


def nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Decompose ``aten.nanmedian.dim``: the median without NaNs."""

    def pick(values: Tensor, ordered: Tensor) -> Tensor:
        valid_count = values.isnan().logical_not().sum(dim, keepdim=True)
        place = (valid_count - 1).clamp(min=0).div(2, rounding_mode="floor")
        return ordered.gather(dim, place)

    return _picked(x, dim, keepdim, pick)


def kthvalue(
    x: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Decompose ``aten.kthvalue``."""
    return _picked(x, dim, keepdim, lambda _, ordered: ordered.narrow(dim, k - 1, 1))


def median(x: Tensor) -> Tensor:
    """Decompose ``aten.median``."""
    return median_dim(x.flatten(), 0)[0]


def nanmedian(x: Tensor) -> Tensor:
    """Decompose ``aten.nanmedian``."""
    return nanmedian_dim(x.flatten(), 0)[0]


def _picked(
    x: Tensor, dim: int, keepdim: bool, pick: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return one element of each sorted slice, and its index; NaN is the largest.

    Args:
        pick: Takes sorted values, and what to pick from: them or their indices.
    """
    if x.ndim == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = torch.sort(x, dim=dim)
    picked = (pick(values, values), pick(values, indices))
    if keepdim:
        return picked
    return picked[0].squeeze(dim), picked[1].squeeze(dim)


#: Order statistics, which need a sort.
STATISTICS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.median.default: median,
    torch.ops.aten.median.dim: median_dim,
    torch.ops.aten.nanmedian.default: nanmedian,
    torch.ops.aten.nanmedian.dim: nanmedian_dim,
    torch.ops.aten.kthvalue.default: kthvalue,
}
