"""Normalization over groups of values, by means that are matmuls."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from executorch.backends.xnnpack.rewriting.arithmetic import row_sums
from executorch.backends.xnnpack.rewriting.graph_builder import (
    GraphBuilder,
    edge,
    value_of,
)
from torch.fx import Node


def of_layers(builder: GraphBuilder) -> dict[Node, Node] | None:
    """Write a layer normalization of which the result alone is read."""
    x, shape, weight, bias, epsilon = builder.args
    result = _only_result(builder.node)
    if result is None or value_of(x).dtype != torch.float32:
        return None
    count = prod(shape)
    scaled = _normalized(builder, x, count, epsilon)
    return {
        result: _affine(builder, builder.view(scaled, value_of(x).shape), weight, bias)
    }


def of_groups(builder: GraphBuilder) -> dict[Node, Node] | None:
    """Write a group normalization of which the result alone is read."""
    x, weight, bias, _, channels, _, groups, epsilon = builder.args
    result, shape = _only_result(builder.node), [*value_of(x).shape]
    if result is None or value_of(x).dtype != torch.float32:
        return None
    if not all(isinstance(size, int) for size in shape[1:]):
        return None
    scaled = _normalized(builder, x, prod(shape[1:]) // groups, epsilon)
    aligned = [1, channels, *[1] * (len(shape) - 2)]
    weight, bias = (each and builder.view(each, aligned) for each in (weight, bias))
    return {result: _affine(builder, builder.view(scaled, shape), weight, bias)}


def _normalized(builder: GraphBuilder, x: Any, count: int, epsilon: Any) -> Node:
    """Write rows of ``count`` values, each without its mean and of a variance of one."""
    rows = builder.call(edge.view_copy.default, x, [-1, count])
    mean = row_sums(builder, rows, count, 1 / count)
    off = builder.call(edge.sub.Tensor, rows, mean)
    squares = builder.call(edge.pow.Tensor_Scalar, off, 2)
    variance = row_sums(builder, squares, count, 1 / count)
    safe = builder.call(edge.add.Tensor, variance, builder.scalar(epsilon, x))
    scale = builder.call(edge.rsqrt.default, safe)
    return builder.call(edge.mul.Tensor, off, scale)


def _affine(builder: GraphBuilder, x: Node, weight: Any, bias: Any) -> Node:
    if weight is not None:
        x = builder.call(edge.mul.Tensor, x, weight)
    if bias is not None:
        x = builder.call(edge.add.Tensor, x, bias)
    return x


def _only_result(node: Node) -> Node | None:
    """Return what reads the first result of a call, None if another is read as well."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.target is operator.getitem and user.args[1] == 0 else None
