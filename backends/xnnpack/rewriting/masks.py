"""Rewrite ``where`` by a mask as minimum and maximum of bounds, and a masked softmax whose rows may be empty."""

from __future__ import annotations

from math import isnan
from typing import Any

import torch
from executorch.backends.xnnpack.rewriting.graph_builder import (
    GraphBuilder,
    alike,
    edge,
    value_of,
)
from executorch.exir.program.operators.calls import operator_of
from torch.fx import Node

_INFINITY = float("inf")


def by_bounds(builder: GraphBuilder) -> Node | None:
    """Rewrite ``where`` of a value and a number as the value clamped to bounds that only depend on the mask.

    The bounds are the number where it is chosen, and infinite elsewhere. A mask that is computed from the value, or
    from what a delegate computes, is left: it would split the delegate just the same.
    """
    mask, first, second = builder.args
    chosen, x, if_chosen = _number(builder, first), second, True
    if chosen is None:
        chosen, x, if_chosen = _number(builder, second), first, False
    if chosen is None or isnan(chosen) or not isinstance(x, Node):
        return None
    if not _is_given(mask, False):
        return None
    if not alike(value_of(x).shape, value_of(builder.node).shape):
        return None
    # Infinite, if float16 has no such number.
    chosen = float(torch.tensor(chosen, dtype=torch.float64).to(value_of(x).dtype))
    if abs(chosen) == _INFINITY:
        scalars = [builder.scalar(number, x) for number in (chosen, -chosen)]
        bound = _choice(builder, mask, scalars, if_chosen)
        target = edge.minimum if chosen < 0 else edge.maximum
        return builder.call(target.default, x, bound)
    scalars = [builder.scalar(number, x) for number in (0.0, _INFINITY)]
    distance = _choice(builder, mask, scalars, if_chosen)
    number = builder.scalar(chosen, x)
    highest = builder.call(edge.add.Tensor, distance, number)
    lowest = builder.call(edge.sub.Tensor, number, distance)
    below = builder.call(edge.minimum.default, x, highest)
    return builder.call(edge.maximum.default, below, lowest)


def _choice(
    builder: GraphBuilder, mask: Node, scalars: list[Node], if_chosen: bool
) -> Node:
    """Build a ``where`` of two numbers by a mask, which the host computes."""
    ordered = scalars if if_chosen else scalars[::-1]
    return builder.call(edge.where.self, mask, *ordered)


def by_softmax(builder: GraphBuilder) -> Node | None:
    """Rewrite ``_safe_softmax``, which is zero in rows of minus infinity, as a softmax.

    As a plain softmax if no mask can make such a row; else of rows bounded by the lowest number, multiplied by
    whether the mask leaves anything of a row.
    """
    parts = _safe_softmax(builder)
    if parts is None:
        return None
    x, softmax = parts
    mask = _mask(x)
    if mask is None or _leaves_all_rows(builder, mask):
        return softmax
    if not _is_given(mask, True):
        return None
    dim = value_of(x).ndim - 1
    lowest = torch.finfo(value_of(x).dtype).min
    bounded = builder.call(edge.clamp.default, x, lowest)
    probabilities = builder.call(edge._softmax.default, bounded, dim, False)
    number = builder.scalar(-_INFINITY, x)
    unmasked = builder.call(edge.ne.Tensor, mask, number)
    rows = builder.call(edge.any.dim, unmasked, value_of(mask).ndim - 1, True)
    ones, zeros = (builder.scalar(number, x) for number in (1.0, 0.0))
    row_factor = builder.call(edge.where.self, rows, ones, zeros)
    return builder.call(edge.mul.Tensor, probabilities, row_factor)


def _safe_softmax(builder: GraphBuilder) -> tuple[Node, Node] | None:
    """Return what a ``where`` has the safe softmax of, and its softmax; None if it is another ``where``.

    PyTorch: ``where(logical_not(any(logical_not(x == -inf), -1, True)), 0, softmax(x, -1))``.
    """
    mask, zeros, softmax = builder.args
    if not isinstance(softmax, Node) or softmax.target is not edge._softmax.default:
        return None
    x: Any = softmax.args[0]
    if (
        softmax.args[1] not in (-1, value_of(x).ndim - 1)
        or _number(builder, zeros) != 0
    ):
        return None
    for target in (
        edge.logical_not.default,
        edge.any.dim,
        edge.logical_not.default,
        edge.eq.Scalar,
    ):
        if not isinstance(mask, Node) or mask.target is not target:
            return None
        if target is edge.any.dim and mask.args[1] not in (-1, value_of(x).ndim - 1):
            return None
        if target is edge.eq.Scalar and mask.args != (x, -_INFINITY):
            return None
        mask = mask.args[0]
    return x, softmax


def _mask(scores: Node) -> Node | None:
    """Return the mask that is added to a matmul, None without one; the scores themselves where it can't be told."""
    while scores.target in _VIEWS:
        scores = scores.args[0]  # type: ignore[assignment]
    if scores.target is edge.bmm.default:
        return None  # finite, of what is finite
    if scores.target is edge.mul.Tensor:
        return _mask_of_scaled(scores)
    if scores.target is not edge.add.Tensor:
        return scores
    for first, second in (scores.args[:2], reversed(scores.args[:2])):
        if isinstance(first, Node) and _mask(first) is None:
            return second if isinstance(second, Node) else scores
    return scores


def _mask_of_scaled(scores: Node) -> Node | None:
    operands = [arg for arg in scores.args[:2] if isinstance(arg, Node)]
    if any(_mask(operand) is None for operand in operands):
        return None
    return scores


_VIEWS = (edge.view_copy.default, edge.expand_copy.default)


def _is_given(mask: Any, of_floats: bool) -> bool:
    """Whether no matmul, convolution or delegate has to run before a mask is known, which would be split by it.

    Args:
        mask: A node.
        of_floats: Whether it may be computed of floating-point values. A choice may not: what is to be hidden may be
            no number, which a minimum doesn't hide.
    """
    pending, seen = [mask], set()
    while pending:
        operand = pending.pop()
        if not isinstance(operand, Node):
            return False
        if operand in seen:
            continue
        seen.add(operand)
        if operand.target in _LATE or (not of_floats and _is_float(operand)):
            return False
        if operand.op != "placeholder":
            pending += operand.all_input_nodes
    return True


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


#: Operators of these rewrites that the host computes from a mask.
ON_THE_HOST = (
    edge.any.dim,
    edge.ne.Tensor,
    edge.where.self,
)

#: Operators that a delegate computes.
_LATE = (
    edge.addmm.default,
    edge.bmm.default,
    edge.convolution.default,
    edge.linear.default,
    edge.mm.default,
    edge._softmax.default,
    torch.ops.higher_order.executorch_call_delegate,
)


def _leaves_all_rows(builder: GraphBuilder, mask: Node) -> bool:
    """Whether a mask is a constant that makes no row minus infinity all over."""
    value = builder.constants.values.get(mask)
    if value is None:
        return False
    return bool(((value != -_INFINITY).any(-1)).all())


def _number(builder: GraphBuilder, node: Any) -> float | None:
    """Return the number that a value is everywhere, None if it isn't one."""
    if not isinstance(node, Node):
        return None
    value = builder.constants.values.get(node)
    if value is not None:
        scalars = value.unique()  # type: ignore[no-untyped-call]
        return float(scalars) if scalars.numel() == 1 else None
    operator = operator_of(node)
    index = _NUMBERS.get(operator)
    argument = None if index is None else node.args[index]
    return float(argument) if isinstance(argument, (int, float)) else None


#: Operators whose result is a number everywhere, and which argument that is.
_NUMBERS = {
    torch.ops.aten.full.default: 1,
    torch.ops.aten.full_like.default: 1,
    torch.ops.aten.scalar_tensor.default: 0,
}
