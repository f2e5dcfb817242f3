"""Decompose operators that ExecuTorch's CUDA runtime has no kernel for into ones that AOTInductor compiles.

Order statistics are sorts, distances are sums, a bag of embeddings is a scatter of rows, antialiased resizing and RoI align are weighted sums, and
convolutions are those that there is a template for.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from executorch.backends.cuda.support.convolutions import convolution
from executorch.backends.cuda.support.resizing import bicubic, bilinear, roi_align
from torch import Tensor

_aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by operator; torchvision's where it is imported."""
    of_images = getattr(torch.ops.torchvision, "roi_align", None)
    return {
        **({} if of_images is None else {of_images.default: roi_align}),
        _aten.median.default: _median,
        _aten.median.dim: _median_dim,
        _aten.nanmedian.default: _nanmedian,
        _aten.nanmedian.dim: _nanmedian_dim,
        _aten.kthvalue.default: _kthvalue,
        _aten.convolution.default: convolution,
        _aten.addbmm.default: _addbmm,
        _aten._cdist_forward.default: _cdist,
        _aten._embedding_bag.default: _embedding_bag,
        _aten._embedding_bag_forward_only.default: _embedding_bag,
        _aten._upsample_bilinear2d_aa.default: bilinear,
        _aten._upsample_bicubic2d_aa.default: bicubic,
    }


def _picked(
    x: Tensor, dim: int, keepdim: bool, rank: Callable[[Tensor], Any]
) -> tuple[Tensor, Tensor]:
    """Return the element at ``rank(values)`` of each sorted slice, and its index; NaN is the largest."""
    if x.ndim == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = torch.sort(x, dim=dim, stable=True)
    place = rank(values)
    if not isinstance(place, Tensor):
        place = torch.full_like(indices.narrow(dim, 0, 1), place)
    values, indices = values.gather(dim, place), indices.gather(dim, place)
    if keepdim:
        return values, indices
    return values.squeeze(dim), indices.squeeze(dim)


def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    def rank(values: Tensor) -> Any:
        size = values.shape[dim]
        largest = values.narrow(dim, size - 1, 1)
        return torch.where(largest.isnan(), size - 1, (size - 1) // 2)

    return _picked(x, dim, keepdim, rank)


def _nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    def rank(values: Tensor) -> Tensor:
        numbers = values.isnan().logical_not().sum(dim, keepdim=True)
        return (numbers - 1).clamp(min=0).div(2, rounding_mode="floor")

    return _picked(x, dim, keepdim, rank)


def _median(x: Tensor) -> Tensor:
    return _median_dim(x.flatten(), 0)[0]


def _nanmedian(x: Tensor) -> Tensor:
    return _nanmedian_dim(x.flatten(), 0)[0]


def _kthvalue(
    x: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return _picked(x, dim, keepdim, lambda values: k - 1)


def _addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    found = torch.bmm(batch1, batch2).sum(0)
    found = found if alpha == 1 else alpha * found
    return found if beta == 0 else found + (x if beta == 1 else beta * x)


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return the distances between rows; Inductor sums without keeping the differences."""
    gaps = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
    if p == 0:
        return (gaps != 0).to(gaps.dtype).sum(-1)
    if p == float("inf"):
        return gaps.amax(-1)
    if p == 1:
        return gaps.sum(-1)
    if p == 2:
        return gaps.square().sum(-1).sqrt()
    return gaps.pow(p).sum(-1).pow(1 / p)


_SUM, _MEAN, _MAX = range(3)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the bags; what is for the backward pass alone has its type, and not always its values."""
    count = offsets.shape[0] - int(include_last_offset)
    begins = offsets.narrow(0, 0, count)
    places = torch.arange(indices.shape[0], dtype=begins.dtype, device=begins.device)
    # An empty bag begins where the next one does.
    bag = torch.searchsorted(begins, places, right=True) - 1
    rows = torch.nn.functional.embedding(indices, weight).float()
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.float().unsqueeze(1)
    kept = (indices != padding_idx).unsqueeze(1)
    sizes = torch.zeros(count, 1, device=weight.device)
    sizes = sizes.index_add(0, bag, kept.float())
    shape = (count, weight.shape[1])
    if mode == _MAX:
        least = torch.full(shape, -torch.inf, device=weight.device)
        rows = rows.where(kept, -torch.inf)
        places = bag.unsqueeze(1).expand(rows.shape)
        bags = least.scatter_reduce(0, places, rows, "amax").where(sizes > 0, 0.0)
    else:
        rows = rows.where(kept, 0.0)
        bags = torch.zeros(shape, device=weight.device).index_add(0, bag, rows)
        if mode == _MEAN:
            bags = bags / sizes.clamp(min=1)
    sizes = sizes.squeeze(1).to(indices.dtype)
    return bags.to(weight.dtype), bag.to(indices.dtype), sizes, sizes
