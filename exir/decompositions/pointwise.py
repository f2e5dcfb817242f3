"""Decompose operators of single elements, and small matmuls, into ones that ExecuTorch has kernels for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def fmax(x: Tensor, y: Tensor) -> Tensor:
    """Decompose ``aten.fmax``: of a number and NaN, the number."""
    return _ignoring_nan(x, y, torch.maximum(x, y))


def fmin(x: Tensor, y: Tensor) -> Tensor:
    """Decompose ``aten.fmin``: of a number and NaN, the number."""
    return _ignoring_nan(x, y, torch.minimum(x, y))


def _ignoring_nan(x: Tensor, y: Tensor, result: Tensor) -> Tensor:
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, result))


def exp2(x: Tensor) -> Tensor:
    """Decompose ``aten.exp2``."""
    return torch.pow(2.0, x)


def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """Decompose ``aten.ldexp``."""
    return x * torch.pow(2.0, exponent)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Decompose ``aten.hypot``, without an overflow of squares."""
    largest = torch.maximum(x.abs(), y.abs())
    scale = torch.where((largest == 0) | largest.isinf(), 1.0, largest)
    return ((x / scale).square() + (y / scale).square()).sqrt() * scale


def round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    """Decompose ``aten.round.decimals``."""
    scale = 10.0 ** abs(decimals)
    return (x * scale).round() / scale if decimals >= 0 else (x / scale).round() * scale


def signbit(x: Tensor) -> Tensor:
    """Decompose ``aten.signbit``, with that of -0.0."""
    if not x.is_floating_point():
        return x < 0
    return (x < 0) | ((x == 0) & (1 / x < 0))


def copysign(x: Tensor, sign: Tensor) -> Any:
    """Decompose ``aten.copysign`` of floating-point values."""
    if not (x.is_floating_point() and sign.is_floating_point()):
        return NotImplemented
    return torch.where(signbit(sign), -x.abs(), x.abs())


def addmv(
    x: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Decompose ``aten.addmv``."""
    product = alpha * torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)
    return product if beta == 0 else product + beta * x
