"""Rewrite powers, reductions and the like into operators that XNNPACK has: matmuls with ones, clamps, means over height and width."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import torch
from executorch.backends.xnnpack.rewriting.graph_builder import (
    GraphBuilder,
    edge,
    value_of,
)
from torch.fx import Node

_TENSOR_OF = {
    edge.add.Scalar: edge.add.Tensor,
    edge.div.Scalar: edge.div.Tensor,
    edge.mul.Scalar: edge.mul.Tensor,
    edge.sub.Scalar: edge.sub.Tensor,
}


def by_tensor(builder: GraphBuilder) -> Node | None:
    """Write arithmetic with a number as with a tensor of no dimension."""
    node = builder.node
    x, number = builder.args[:2]
    if len(builder.args) > 2 or node.kwargs or not isinstance(number, (int, float)):
        return None
    return builder.call(_TENSOR_OF[node.target], x, builder.scalar(number, x))


def by_root(builder: GraphBuilder) -> Node | None:
    """Rewrite a power as a square root, square, multiplication or division."""
    x, power = builder.args
    if power in (0.5, -0.5):
        return builder.call(edge.sqrt.default if power > 0 else edge.rsqrt.default, x)
    if power == -1:
        return _inverse(builder, x)
    if power not in (2, 3, 4):
        return None
    square = builder.call(edge.pow.Tensor_Scalar, x, 2)
    if power == 2:
        return square
    return builder.call(edge.mul.Tensor, square, x if power == 3 else square)


def by_division(builder: GraphBuilder) -> Node:
    """Write a reciprocal."""
    (x,) = builder.args
    return _inverse(builder, x)


def _inverse(builder: GraphBuilder, x: Node) -> Node:
    return builder.call(edge.div.Tensor, builder.scalar(1.0, x), x)


def by_clamps(builder: GraphBuilder) -> Node | None:
    """Rewrite an ELU with an exponential of non-positive values only."""
    x, alpha, scale, input_scale = (*builder.args, *[1.0] * 4)[:4]
    if (scale, input_scale) != (1, 1) or builder.node.kwargs:
        return None
    positive = builder.call(edge.clamp.default, x, 0.0)
    negative = builder.call(edge.clamp.default, x, None, 0.0)
    raised = builder.call(edge.exp.default, negative)
    reduced = builder.call(edge.sub.Tensor, raised, builder.scalar(1.0, x))
    if alpha != 1:
        reduced = builder.call(edge.mul.Tensor, reduced, builder.scalar(alpha, x))
    return builder.call(edge.add.Tensor, positive, reduced)


def by_reduction(builder: GraphBuilder) -> Node | None:
    """Write a sum or a mean as a mean of images, or a matmul with ones."""
    node = builder.node
    x, listed, keepdim = (*builder.args, False)[:3]
    if node.kwargs.get("dtype") not in (None, value_of(x).dtype):
        return None
    averages = node.target is edge.mean.dim
    dims = _dims(listed, value_of(x).ndim)
    if averages and value_of(x).ndim == 4 and dims == [2, 3]:
        mean = builder.call(edge.mean.dim, x, [2, 3], True)
        return builder.view(mean, value_of(node).shape)
    return reduced(builder, x, dims, bool(keepdim), None if averages else 1.0)


def by_deviations(builder: GraphBuilder) -> Node | None:
    """Write a variance as the mean of squared differences from the mean."""
    node = builder.node
    x, listed = (*builder.args, None)[:2]
    dims = _dims(listed, value_of(x).ndim)
    sizes = [value_of(x).shape[dim] for dim in dims]
    correction = node.kwargs.get("correction", 1)
    keepdim = bool(node.kwargs.get("keepdim", False))
    if not all(isinstance(size, int) for size in sizes) or prod(sizes) <= correction:
        return None
    mean = reduced(builder, x, dims, True, None)
    if mean is None:
        return None
    off = builder.call(edge.sub.Tensor, x, mean)
    squares = builder.call(edge.pow.Tensor_Scalar, off, 2)
    return reduced(builder, squares, dims, keepdim, 1 / (prod(sizes) - correction))


def reduced(
    builder: GraphBuilder, x: Node, dims: list[int], keepdim: bool, scale: float | None
) -> Node | None:
    """Write a sum along dimensions, of fixed sizes, as a matmul.

    Args:
        builder: Writes it.
        x: The value to reduce.
        dims: Along which.
        keepdim: Whether they are left, with a size of 1.
        scale: By what the sum is multiplied; None for a mean.

    Returns:
        The sum; None if XNNPACK hasn't one of such sizes.
    """
    value = value_of(x)
    shape = [*value.shape]
    remaining = [dim for dim in range(value.ndim) if dim not in dims]
    sizes = [shape[dim] for dim in dims]
    dynamic = sum(not isinstance(shape[dim], int) for dim in remaining)
    if value.dtype != torch.float32 or not dims or dynamic > 1:
        return None  # in float16, a matmul may add in float16
    if not all(isinstance(size, int) for size in sizes):
        return None
    count = prod(sizes)
    factor = 1 / count if scale is None else scale
    if remaining + dims != [*range(value.ndim)]:
        x = builder.call(edge.permute_copy.default, x, remaining + dims)
    total = row_sums(builder, x, count, factor)
    reduced_shape = [1 if dim in dims else size for dim, size in enumerate(shape)]
    return builder.view(
        total, reduced_shape if keepdim else [shape[dim] for dim in remaining]
    )


def row_sums(builder: GraphBuilder, x: Node, count: int, factor: float) -> Node:
    """Write the sum of each ``count`` values in a row, multiplied by a factor, as matmuls with few ones.

    Returns:
        As many rows of one.
    """
    ones, width = builder.constants.full, _factor(count)
    dtype = value_of(x).dtype
    if width < count:
        parts = builder.call(edge.view_copy.default, x, [-1, width])
        x = builder.call(edge.mm.default, parts, ones((width, 1), 1.0, dtype))
        count //= width
    rows = builder.call(edge.view_copy.default, x, [-1, count])
    return builder.call(edge.mm.default, rows, ones((count, 1), factor, dtype))


def _factor(count: int) -> int:
    """Return the least divisor of a count that is at least its root, the count itself if it is small."""
    if count <= _FEW:
        return count
    return next(n for n in range(isqrt(count - 1) + 1, count + 1) if not count % n)


#: Ones that are summed with at once.
_FEW = 1024


def by_last_dim(builder: GraphBuilder) -> Node | None:
    """Write a softmax along another dimension than the last between two permutations."""
    x, dim, half = builder.args
    ndim = value_of(x).ndim
    order = [*range(ndim)]
    dim %= max(ndim, 1)
    if half or dim == ndim - 1:
        return None
    order[dim], order[-1] = order[-1], order[dim]
    moved = builder.call(edge.permute_copy.default, x, order)
    probabilities = builder.call(edge._softmax.default, moved, ndim - 1, False)
    return builder.call(edge.permute_copy.default, probabilities, order)


def _dims(listed: Any, ndim: int) -> list[int]:
    """Return the dimensions that are reduced, all of them by default."""
    return sorted({dim % ndim for dim in listed or range(ndim)})
