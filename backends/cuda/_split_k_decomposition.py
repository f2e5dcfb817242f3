"""Decompose matmuls of few tiles into a batched matmul over parts of K and a sum, so that all multiprocessors have work.

With tiles of (64, 64) a matmul of (64, 4096) by (4096, 256) uses 4 of 132 multiprocessors, each of which iterates over all of K.
In 8 parts 32 are used, and the reduction of the parts is fused with the matmul's epilogue. The cost model decides whether that
is faster.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda.tuning.cost_model import Matmul, cost, fastest, row_counts
from executorch.backends.cuda.tuning.float32_precision import (
    IEEE,
    arithmetic,
    precision_of_matmuls,
)
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties
from torch import Tensor

aten = torch.ops.aten

#: Parts that are tried, and the least summands of one.
_PARTS, _LEAST = (2, 4, 8, 16), 64
#: The least speedup by the model, whose error is about a tenth.
_GAIN = 1.25
#: Measured microseconds of a nearly empty kernel, and of a reduction kernel.
_LEAST_US, _SUM_US = 4.5, 2.5
#: The largest slowdown allowed at the largest size of a dynamic dimension.
_LOSS = 1.2


def matmul(gpu: GpuProperties) -> Callable[..., Any]:
    """Return a decomposition of ``aten.mm`` and ``aten.addmm`` for ``gpu``, which returns ``NotImplemented`` for matmuls that it doesn't split."""

    def decompose(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Any:
        parts = parts_of_k(a, b, gpu)
        if parts == 1:
            return NotImplemented
        part_size = a.shape[1] // parts
        left_parts = a.reshape(a.shape[0], parts, part_size).transpose(0, 1)
        right = b.reshape(parts, part_size, b.shape[1])
        if a.dtype == torch.float32:
            partial = aten.bmm.default(left_parts, right)
        else:
            partial = aten.bmm.dtype(left_parts, right, torch.float32)
        total = partial.sum(0)
        if bias is not None:
            total = total + bias
        return total.to(a.dtype)

    return decompose


def parts_of_k(a: Tensor, b: Tensor, gpu: GpuProperties) -> int:
    """Return the fastest number of parts of K; 1 if the matmul isn't decomposed."""
    (rows, summed), columns = a.shape, b.shape[1]
    halves = (torch.float16, torch.bfloat16)
    if a.dtype not in (*halves, torch.float32) or a.dtype != b.dtype:
        return 1
    if not isinstance(summed, int) or not isinstance(columns, int):
        return 1
    capability = gpu.capability
    of_float32 = a.dtype == torch.float32
    precision = precision_of_matmuls(capability) if of_float32 else IEEE
    kind = f"product {arithmetic(a.dtype, capability, precision)}"
    _, at_example, at_most = row_counts(rows)

    def microseconds(m: int, parts: int) -> float:
        sizes = m, columns, summed, parts, a.dtype.itemsize
        return _microseconds(kind, *sizes, gpu, gpu.measurements)

    whole, most = microseconds(at_example, 1), microseconds(at_most, 1)
    if not math.isfinite(whole):
        return 1
    best_parts, best = 1, whole / _GAIN
    for parts in _PARTS:
        part_size = summed // parts
        if summed % parts or part_size < _LEAST or part_size % 16:
            continue
        us = microseconds(at_example, parts)
        if us < best and microseconds(at_most, parts) < most * _LOSS:
            best_parts, best = parts, us
    return best_parts


# A model's layers have the same matmuls, and each takes a tenth of a second. GPUs of one description may differ in measurements.
@functools.lru_cache(maxsize=4096)
def _microseconds(
    kind: str,
    m: int,
    n: int,
    k: int,
    parts: int,
    itemsize: int,
    gpu: GpuProperties,
    measurements: tuple[Path, ...],
) -> float:
    """Return the microseconds that the model expects for a matmul in ``parts`` parts of K, and their sum."""
    matmul = Matmul(kind, m, n, k // parts, parts)
    tile = fastest(matmul, gpu)
    if tile is None:
        return math.inf
    read = (m * k + k * n) * itemsize / 1e3 / gpu.kilobytes_per_us
    us = max(math.exp(cost(matmul, tile, gpu)), _LEAST_US + read)
    if parts > 1:
        us += _SUM_US + 2 * parts * m * n * 4 / 1e3 / gpu.kilobytes_per_us
    return us
