"""Decompose GEMV-shaped matmuls and depthwise convolutions into multiply + reduce, so that Inductor fuses them.

A GEMV reads a matrix once and computes little: its speed is that of memory, if all multiprocessors read.
A convolution of few channels per group has as little arithmetic. Tiles of at least 16 by 16 are mostly
empty for either, and for a GEMV most multiprocessors are idle as well.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from executorch.backends.cuda import (
    _softmax_decomposition,
    _split_k_decomposition,
    _unfold_decomposition,
)
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

aten = torch.ops.aten

#: The most terms of a convolution's sum for one output value.
_TERMS = 64
#: Values that a GPU reads in less than a launch takes, 2 us.
_SMALL = 1 << 18
#: Rows of which a tile is half empty.
_FEW_ROWS = 8
_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
#: A value that is read in more places is in memory.
_PLACES = 4
_most: ContextVar[int] = ContextVar("_most", default=_TERMS)


@contextlib.contextmanager
def limited_unrolling() -> Iterator[None]:
    """Scope with a low limit of unrolled terms, for support checks: generated code is short, and still represents all."""
    before = _most.set(_PLACES + 1)
    try:
        yield
    finally:
        _most.reset(before)


def overrides(gpu: GpuProperties) -> dict[str, Callable[..., Any]]:
    """Return the override of Inductor's decomposition table for ``gpu``."""
    from torch._inductor.decomposition import select_decomp_table

    matmul_2d = _first_of(matmul, _split_k_decomposition.matmul(gpu))
    ours: dict[Any, Callable[..., Any]] = {
        aten.mm.default: matmul_2d,
        aten.addmm.default: lambda bias, a, b: matmul_2d(a, b, bias),
        aten.bmm.default: matmul,
        aten.convolution.default: _first_of(
            convolution, _unfold_decomposition.convolution
        ),
        aten._softmax.default: _softmax_decomposition.softmax,
        aten._log_softmax.default: _softmax_decomposition.log_softmax,
    }

    def with_mul_sum() -> dict[Any, Callable[..., Any]]:
        table = dict(select_decomp_table())
        for operator, decomposition in ours.items():
            table[operator] = _first_of(decomposition, table.get(operator))
        return table

    return {"torch._inductor.decomposition:select_decomp_table": with_mul_sum}


def is_padded_for_depthwise(node: Node) -> bool:
    """Whether a node pads what a depthwise convolution reads: with the padding in memory no term checks bounds.

    On an H200 a block of ConvNeXt's takes 96 us so, else 111. What a group reads of several channels is faster without.
    """
    return (
        node.target is aten.constant_pad_nd.default
        and _terms(node) > _PLACES
        and not _is_small(node.meta["val"])
        and all(_has_one_channel_a_group(user) for user in node.users)
    )


def _is_small(value: Tensor) -> bool:
    """Whether a value is so small that a kernel of its own costs more than it saves."""
    size = value.numel()
    return isinstance(size, int) and size < _SMALL


def _has_one_channel_a_group(node: Node) -> bool:
    """Whether a node views a padded value as (N, groups, 1, *sizes)."""
    if node.target not in _RESHAPES:
        return False
    shape: Any = node.args[1]
    return len(shape) > 2 and bool(shape[2] == 1)


def read_often(node: Node) -> bool:
    """Whether the value of a node is read for each row or term of a sum.

    What computes it would be repeated as often, so it has to be in memory.
    """
    return any(
        (
            reader.target is aten.constant_pad_nd.default
            and _terms(reader) > _PLACES
            and not is_padded_for_depthwise(reader)
        )
        or (reader.target is aten.unsqueeze.default and _is_repeated(reader))
        for reader in node.users
    )


def _terms(padded: Node) -> int:
    """Count the reads of a padded value in one shape."""
    return max(len(padded.users), *(len(view.users) for view in padded.users))


def _is_repeated(factor: Node) -> bool:
    """Whether a factor of a multiply + reduce is broadcast: smaller than the other one."""
    return any(
        product.target is aten.mul.Tensor
        and any(user.target is aten.sum.dim_IntList for user in product.users)
        and factor.meta["val"].numel() != product.meta["val"].numel()
        for product in factor.users
    )


def _first_of(ours: Callable[..., Any], upstream: Callable[..., Any] | None) -> Any:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        result = NotImplemented if kwargs else ours(*args)
        if result is NotImplemented and upstream is not None:
            return upstream(*args, **kwargs)
        return result

    return decompose


def _wide(*values: Tensor) -> tuple[Tensor, ...]:
    """Return values in the accumulation type: float32 for half precision."""
    narrow = (torch.float16, torch.bfloat16)
    return tuple(value.float() if value.dtype in narrow else value for value in values)


def matmul(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Any:
    """Decompose a matmul of (..., M, K) by (..., K, N) that is a GEMV, in float64, or small; the result has the type of ``a``."""
    rows, summed, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    one = any(isinstance(size, int) and size == 1 for size in (rows, columns))
    # Inductor has no template for matmuls in float64, and ExecuTorch's CUDA runtime no kernel.
    few = a.dim() == 2 and _is_few(rows, summed, columns)
    fits = one or few or a.dtype == torch.float64
    if not a.is_floating_point() or not fits:
        return NotImplemented
    wide_a, wide_b, *more = _wide(a, b, *[] if bias is None else [bias])
    total = (wide_a.unsqueeze(-1) * wide_b.unsqueeze(-3)).sum(-2)
    return sum(more, total).to(a.dtype)


def _is_few(*sizes: Any) -> bool:
    """Whether a matmul is of so few numbers that its tiles would be on a few multiprocessors, and half empty."""
    known = all(isinstance(size, int) for size in sizes)
    return known and min(sizes) <= _FEW_ROWS and math.prod(sizes) <= _SMALL


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    outputs, depth, *window = weight.shape
    if transposed or groups == 1 or depth * math.prod(window) > _TERMS:
        return NotImplemented
    if x.dim() != weight.dim() or not x.is_floating_point():
        return NotImplemented
    dims = len(window)
    stride, padding, dilation = _unfold_decomposition.per_axis(
        dims, stride, padding, dilation
    )
    padded = F.pad(x, [side for n in reversed(padding) for side in (n, n)])
    pixels = [
        (size - step * (length - 1) - 1) // hop + 1
        for size, step, length, hop in zip(
            padded.shape[2:], dilation, window, stride, strict=True
        )
    ]
    # Groups, what each reads and what each gives have dimensions of their own.
    padded = padded.reshape(-1, groups, depth, *padded.shape[2:])
    weights = weight.reshape(groups, outputs // groups, *weight.shape[1:])
    total: Any = 0
    places = itertools.product(range(depth), *map(range, window))
    for channel, *place in itertools.islice(places, _most.get()):
        read = padded[:, :, channel]
        for axis, (at, step, hop, count) in enumerate(
            zip(place, dilation, stride, pixels, strict=True)
        ):
            first = at * step
            read = read[
                (slice(None),) * (2 + axis)
                + (slice(first, first + (count - 1) * hop + 1, hop),)
            ]
        factor = weights[:, :, channel]
        for at in place:
            factor = factor.select(2, at)
        factor = factor[(..., *[None] * dims)]
        read, factor = _wide(read.unsqueeze(2), factor)
        total = total + read * factor
    total = total.flatten(1, 2)
    if bias is not None:
        total = total + _wide(bias)[0].view(-1, *[1] * dims)
    return total.to(x.dtype)
