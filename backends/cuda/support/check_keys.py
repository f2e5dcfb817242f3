"""Cache keys of the operator support check: all that decides whether ``CudaBackend`` can compile an operator.

Operators of equal keys are checked once. Similar sizes have equal keys for operators that Inductor compiles alike at any size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from executorch.backends.cuda.support.operands import branch_of, hint_of, results_read
from executorch.exir.program.operators.calls import operator_of
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

#: Operators that Inductor compiles at one size as it does at another, beside those that are pointwise.
_ANY_SIZE = {
    *("_native_batch_norm_legit_no_training", "cat"),
    *("conv1d", "conv2d", "conv3d", "convolution"),
    *("addmm", "bmm", "linear", "mm"),
}
#: Sizes from which on they do; below, a tile or an unrolled sum may be as long.
_LONG = 32
#: Values that 32 bits can't count.
_VAST = 1 << 31


def key_of(
    node: Node, scalar_constants: Mapping[Node, Any], made: Collection[Node] = ()
) -> str:
    """Return what decides whether a node can be compiled.

    Args:
        node: A call of an operator, with fake values as the ``val`` of what it takes.
        scalar_constants: The values of constants without a dimension, by their placeholders.
        made: Values computed from constants, which are compiled with it.
    """

    def describe(producer: Node) -> Any:
        if (branch := branch_of(producer)) is not None:
            return _describe_branch(branch)
        exact = not alike or producer in scalar_constants
        of_tensor = _describe if exact else _describe_alike
        value = pytree.tree_map(of_tensor, producer.meta["val"])
        if producer in scalar_constants:
            return value, scalar_constants[producer]
        if producer in made:
            return value, "constant" if producer.op == "placeholder" else call(producer)
        return value

    def call(node: Node) -> Any:
        name = str(operator_of(node))
        args, kwargs = map_arg((node.args, node.kwargs), describe)
        if alike and args and isinstance(args[0], (list, tuple)):
            # The set of concatenated tensors matters, and hardly how often each occurs.
            args = ((len(args[0]).bit_length(), *dict.fromkeys(args[0])), *args[1:])
        return name, args, kwargs

    alike = not made and _takes_any_size(node)
    return repr((*call(node), sorted(results_read(node))))


def _takes_any_size(node: Node) -> bool:
    called = operator_of(node)
    if not isinstance(called, torch._ops.OpOverload) or called.namespace != "aten":
        return False
    return torch.Tag.pointwise in called.tags or called._opname in _ANY_SIZE


def _describe_alike(value: Any) -> Any:
    """Like :func:`_describe`, but one for tensors whose sizes differ by less than a factor of two and whose strides are ordered alike."""
    if not isinstance(value, torch.Tensor):
        return hint_of(value)
    dtype, sizes, strides = _describe(value)
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], -sizes[dim], dim))
    dense = _dense_strides(sizes, order) == strides
    return (
        dtype,
        tuple(map(_size_class, sizes)),
        ("dense", *order) if dense else strides,
        math.prod(sizes) >= _VAST,
    )


def _size_class(size: int) -> Any:
    return size if size < _LONG else (size.bit_length(), size % _LONG == 0)


def _dense_strides(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim], step = step, step * max(sizes[dim], 1)
    return tuple(strides)


def _describe_branch(branch: GraphModule) -> Any:
    """Describe the computation of a branch, without its nodes' names."""
    places = {node: place for place, node in enumerate(branch.graph.nodes)}

    def describe(node: Node) -> Any:
        called = node.op, str(operator_of(node)), _values(node)
        return called, map_arg((node.args, node.kwargs), places.__getitem__)

    def _values(node: Node) -> Any:
        if (inner := branch_of(node)) is not None:
            return _describe_branch(inner)
        value = pytree.tree_map(_describe, node.meta.get("val"))
        if node.op == "get_attr":
            constant = getattr(branch, str(node.target))
            if isinstance(constant, torch.Tensor) and constant.ndim == 0:
                return value, constant.item()
        return value

    return [describe(node) for node in branch.graph.nodes]


def _describe(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return hint_of(value)
    return (
        value.dtype,
        tuple(map(hint_of, value.shape)),
        tuple(map(hint_of, value.stride())),
    )
