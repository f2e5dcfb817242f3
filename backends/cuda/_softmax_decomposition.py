"""Compute a softmax of scaled values in two passes over them, maxima and sums in one.

Inductor does so for ``softmax(x)``. Of ``softmax(x / c)`` it takes the maxima of ``x`` first, since with fused multiply-adds
``x / c`` may come out otherwise in the second pass than in the first, and from torch 2.14 on it also looks for values that
aren't finite, each in a pass of its own. What is compiled for ExecuTorch has no fused multiply-adds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """Decompose ``aten._softmax``; return ``NotImplemented`` where Inductor has no such kernel.

    Args:
        x: Of any shape but (), in float32, float16 or bfloat16, on a GPU.
        dim: Over which it sums to 1.
        half_to_float: Whether the result is in float32 where ``x`` is in float16.
    """
    if not _has_kernel(x):
        return NotImplemented
    return in_two_passes(x, dim, half_to_float, logarithm=False)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    """Decompose ``aten._log_softmax`` as :func:`softmax` does ``aten._softmax``."""
    if not _has_kernel(x):
        return NotImplemented
    return in_two_passes(x, dim, half_to_float, logarithm=True)


def _has_kernel(x: Tensor) -> bool:
    from torch._inductor import config

    return bool(config.online_softmax and x.is_cuda and x.dim()) and x.dtype in _DTYPES


def in_two_passes(
    x: Tensor, dim: int, half_to_float: bool, *, logarithm: bool
) -> Tensor:
    """Return the softmax of ``x``, or its logarithm, on any device."""
    from torch._inductor import inductor_prims

    values = x.contiguous().to(torch.float32)
    largest, total = inductor_prims.prepare_softmax_online(values, dim % x.dim())
    shifted = values - largest
    result = shifted - torch.log(total) if logarithm else torch.exp(shifted) / total
    return result if half_to_float else result.to(x.dtype)


__all__ = ["in_two_passes", "log_softmax", "softmax"]
