"""Decompose operators that ExecuTorch's CUDA runtime has no kernel for into ones that AOTInductor compiles.

Order statistics are sorts, distances are sums, a bag of embeddings is a scatter of rows, antialiased resizing and RoI align are weighted sums, and
convolutions are those that there is a template for.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from executorch.backends.cuda.support.convolutions import convolution
from executorch.exir.decompositions import order, sampling, scatters
from torch import Tensor

_aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by operator; torchvision's where it is imported."""
    return {
        **order.STATISTICS,
        **scatters.BAGS,
        **sampling.decompositions(),
        _aten.convolution.default: convolution,
        _aten.addbmm.default: _addbmm,
        _aten._cdist_forward.default: _cdist,
    }


def _addbmm(
    x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.bmm(batch1, batch2).sum(0)
    product = product if alpha == 1 else alpha * product
    return product if beta == 0 else product + (x if beta == 1 else beta * x)


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
