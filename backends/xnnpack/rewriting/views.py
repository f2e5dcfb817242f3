"""Rewrite views and slices that XNNPACK only supports as ``view_copy`` and ``slice_copy``."""

from __future__ import annotations

import operator
from typing import Any

from executorch.backends.xnnpack.rewriting.graph_builder import (
    GraphBuilder,
    alike,
    edge,
    sizes_of_view,
    value_of,
)
from torch.fx import Node


def is_noop(node: Node) -> bool:
    """Whether a call returns its operand as it is: a copy of a view of all of it."""
    if node.target not in _MAYBE_NOOPS or not isinstance(node.args[0], Node):
        return False
    shown, value = value_of(node.args[0]), value_of(node)
    if node.target is edge.permute_copy.default:
        dims: Any = node.args[1]
        if [dim % shown.ndim for dim in dims] != [*range(shown.ndim)]:
            return False
    if node.target is edge.slice_copy.Tensor and (*node.args, 1, 1, 1)[4] != 1:
        return False
    return shown.dtype == value.dtype and alike(shown.shape, value.shape)


_MAYBE_NOOPS = (
    edge.alias_copy.default,
    edge.expand_copy.default,
    edge.permute_copy.default,
    edge.repeat.default,
    edge.slice_copy.Tensor,
    edge.view_copy.default,
)


def by_view(builder: GraphBuilder) -> Node | None:
    """Write a view of the same elements, if at most one size is dynamic."""
    node = builder.node
    shape = value_of(node).shape
    dynamic = [not isinstance(size, int) for size in shape]
    if sum(dynamic) > 1 or any(isinstance(size, int) and not size for size in shape):
        return None
    return builder.call(edge.view_copy.default, node.args[0], sizes_of_view(shape))


def by_slice_and_view(builder: GraphBuilder) -> Node | None:
    """Write a ``select`` as a slice of one."""
    x, dim, index = builder.args
    size = value_of(x).shape[dim]
    if not isinstance(size, int) or not isinstance(index, int):
        return None
    start = index % size
    cut = builder.call(edge.slice_copy.Tensor, x, dim, start, start + 1)
    return builder.view(cut, value_of(builder.node).shape)


def by_slices(builder: GraphBuilder) -> dict[Node, Node] | None:
    """Write a ``split_with_sizes`` as a slice for each of its results that is read."""
    node = builder.node
    x, sizes, dim = (*builder.args, 0)[:3]
    if not all(isinstance(size, int) for size in sizes):
        return None
    results = {}
    for user in node.users:
        if user.target is not operator.getitem:
            return None
        index: Any = user.args[1]
        start = sum(sizes[:index])
        results[user] = builder.call(
            edge.slice_copy.Tensor, x, dim, start, start + sizes[index]
        )
    return results


def without_expansion(builder: GraphBuilder) -> Node | None:
    """Write a call of two operands that broadcasts one by itself, in the place of one that reads it expanded."""
    node = builder.node
    operands = [_unexpanded(arg) for arg in node.args[:2]]
    if operands == [*node.args[:2]]:
        return None
    # One of them has the sizes of the result by itself.
    shapes = [
        value_of(operand).shape for operand in operands if isinstance(operand, Node)
    ]
    if not any(alike(shape, value_of(node).shape) for shape in shapes):
        return None
    return builder.call(node.target, *operands, *node.args[2:], **node.kwargs)


def _unexpanded(x: Any) -> Any:
    if isinstance(x, Node) and x.target is edge.expand_copy.default:
        return x.args[0]
    return x
