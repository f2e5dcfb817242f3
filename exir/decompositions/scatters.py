"""Decompose reductions by index into ``scatter_add``, or into a reduction of each element's own values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from executorch.exir.decompositions._sizes import fits
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true


def scatter_reduce(
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Decompose ``aten.scatter_reduce.two``.

    Sums and means are ``scatter_add``, whose kernels ExecuTorch and backends have. The others compare each place with all
    indices: as many elements as both together, so that large ones are ``NotImplemented``.
    """
    if x.ndim == 0 or x.dtype == torch.bool:
        return NotImplemented
    if reduce in ("sum", "mean"):
        start = x if include_self else x.scatter(dim, index, 0)
        total = start.scatter_add(dim, index, src)
        if reduce == "sum":
            return total
        ones = torch.ones_like(x) if include_self else torch.zeros_like(x)
        count = ones.scatter_add(dim, index, torch.ones_like(src)).clamp(min=1)
        if x.is_floating_point():
            return total / count
        return total.div(count, rounding_mode="floor")
    return _by_comparison(x, dim, index, src, reduce, include_self)


def _by_comparison(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool
) -> Any:
    dim %= x.ndim
    for axis, (size, index_size) in enumerate(zip(x.shape, index.shape, strict=True)):
        if axis != dim and not statically_known_true(size == index_size):
            return NotImplemented
        src = src.narrow(axis, 0, index_size)
    if not fits(*index.shape, x.shape[dim]) or statically_known_true(
        index.numel() == 0
    ):
        return NotImplemented
    own, index, src = (operand.movedim(dim, -1) for operand in (x, index, src))
    places = torch.arange(own.shape[-1], device=x.device).unsqueeze(-1)
    here = index.unsqueeze(-2) == places
    lowest, largest = _limits(x.dtype)
    neutral = {"amax": lowest, "amin": largest, "prod": 1}[reduce]
    values = torch.where(here, src.unsqueeze(-2), neutral)
    if reduce == "prod":
        reduced = values.prod(-1, dtype=x.dtype)
        reduced = own * reduced if include_self else reduced
    elif reduce == "amax":
        reduced = values.amax(-1)
        reduced = torch.maximum(own, reduced) if include_self else reduced
    else:
        reduced = values.amin(-1)
        reduced = torch.minimum(own, reduced) if include_self else reduced
    if not include_self:
        reduced = torch.where(here.any(-1), reduced, own)
    return reduced.movedim(-1, dim)


def _limits(dtype: torch.dtype) -> tuple[float, float]:
    if dtype.is_floating_point:
        return -math.inf, math.inf
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def index_reduce(
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Decompose ``aten.index_reduce``."""
    if x.ndim == 0:
        return NotImplemented
    shape = [1] * x.ndim
    shape[dim] = -1
    places = index.view(shape).expand(source.shape).long()
    return scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


_SUM, _MEAN, _MAX = range(3)


def embedding_bag(
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
    """Return the bags; outputs for the backward pass have the right types, but not always the right values."""
    count = offsets.shape[0] - int(include_last_offset)
    begins = offsets.narrow(0, 0, count)
    places = torch.arange(indices.shape[0], dtype=begins.dtype, device=begins.device)
    # An empty bag begins where the next one does.
    bag = torch.searchsorted(begins, places, right=True) - 1
    rows = torch.nn.functional.embedding(indices, weight).float()
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.float().unsqueeze(1)
    not_padding = (indices != padding_idx).unsqueeze(1)
    sizes = torch.zeros(count, 1, device=weight.device)
    sizes = sizes.index_add(0, bag, not_padding.float())
    shape = (count, weight.shape[1])
    if mode == _MAX:
        lowest = torch.full(shape, -torch.inf, device=weight.device)
        rows = rows.where(not_padding, -torch.inf)
        places = bag.unsqueeze(1).expand(rows.shape)
        bags = lowest.scatter_reduce(0, places, rows, "amax").where(sizes > 0, 0.0)
    else:
        added = not_padding
        if include_last_offset and padding_idx < 0:
            # It is to be how many indices there are. ATen's sums without padding end there, and nothing else does.
            added = added & (places < offsets[-1]).unsqueeze(1)
        rows = rows.where(added, 0.0)
        bags = torch.zeros(shape, device=weight.device).index_add(0, bag, rows)
        if mode == _MEAN:
            bags = bags / sizes.clamp(min=1)
    sizes = sizes.squeeze(1).to(indices.dtype)
    return bags.to(weight.dtype), bag.to(indices.dtype), sizes, sizes


#: Both operators of an embedding bag.
BAGS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._embedding_bag.default: embedding_bag,
    torch.ops.aten._embedding_bag_forward_only.default: embedding_bag,
}
