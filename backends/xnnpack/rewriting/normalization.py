"""Rewrite layer and group normalization with means as matmuls, and batch normalization of constant statistics."""

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
    """Rewrite a layer normalization of which only the result is read."""
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
    """Rewrite a group normalization of which only the result is read."""
    x, weight, bias, _, channels, _, groups, epsilon = builder.args
    result, shape = _only_result(builder.node), [*value_of(x).shape]
    if result is None or value_of(x).dtype != torch.float32:
        return None
    if not all(isinstance(size, int) for size in shape[1:]):
        return None
    scaled = _normalized(builder, x, prod(shape[1:]) // groups, epsilon)
    aligned = [1, channels, *[1] * (len(shape) - 2)]
    weight, bias = (
        affine and builder.view(affine, aligned) for affine in (weight, bias)
    )
    return {result: _affine(builder, builder.view(scaled, shape), weight, bias)}


def of_instances(builder: GraphBuilder) -> dict[Node, Node] | None:
    """Write a batch normalization of a batch of one by its own statistics: that of instances, whose channels are a batch's and their own."""
    x, weight, bias, training, _, epsilon = builder.args
    result, shape = _only_result(builder.node), [*value_of(x).shape]
    if result is None or not training or value_of(x).dtype != torch.float32:
        return None
    if shape[0] != 1 or not all(isinstance(size, int) for size in shape):
        return None
    scaled = _normalized(builder, x, prod(shape[2:]), epsilon)
    aligned = [1, shape[1], *[1] * (len(shape) - 2)]
    weight, bias = (
        affine and builder.view(affine, aligned) for affine in (weight, bias)
    )
    return {result: _affine(builder, builder.view(scaled, shape), weight, bias)}


def of_batches(builder: GraphBuilder) -> dict[Node, Node] | None:
    """Rewrite a batch normalization of constant statistics, which can't be folded into a preceding layer, as mul and add."""
    x, weight, bias, mean, variance, _, epsilon = builder.args
    result, ndim = _only_result(builder.node), value_of(x).ndim
    known = builder.constants.values
    parameters = [
        parameter
        for parameter in (weight, bias, mean, variance)
        if parameter is not None
    ]
    if (
        result is None
        or ndim < 2
        or not all(parameter in known for parameter in parameters)
    ):
        return None
    dtype = value_of(x).dtype
    scale = (known[variance].double() + epsilon).rsqrt()
    if weight is not None:
        scale = scale * known[weight].double()
    shift = -known[mean].double() * scale
    if bias is not None:
        shift = shift + known[bias].double()
    factor, term = (
        builder.constants.tensor(value.detach().to(dtype).view(-1, *[1] * (ndim - 2)))
        for value in (scale, shift)
    )
    scaled = builder.call(edge.mul.Tensor, x, factor)
    return {result: builder.call(edge.add.Tensor, scaled, term)}


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
