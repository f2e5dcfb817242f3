"""Values that are written to memory, where Inductor would compute them anew for each of what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from executorch.backends.cuda import _mul_sum_decompositions
from executorch.backends.cuda.support.operands import hint_of
from torch.fx import Node
from torch.utils import _pytree as pytree

aten, prims = torch.ops.aten, torch.ops.prims
#: Of tens of instructions for a value; and what is done to their results, element by element, before those are read.
_SLOW = {
    *(aten.sin.default, aten.cos.default, aten.tan.default),
    *(aten.pow.Scalar, aten.pow.Tensor_Tensor),
}
_NEXT = {prims.convert_element_type.default, aten.mul.Tensor, aten.neg.default}
_VIEWS = {
    *(aten.unsqueeze.default, aten.view.default, aten.reshape.default),
    *(aten.expand.default, aten.permute.default, aten.slice.Tensor),
}
#: Values from which a kernel more is worth it. A rotary embedding of one token has 128.
_MANY = 1 << 12


def realize(node: Node, result: Any, every: bool) -> None:
    """Realize the result of a node, in place, if it is read by kernels of somebody's own, or often.

    Args:
        node: Of Inductor's graph.
        result: What it was lowered to.
        every: Whether all results are realized.
    """
    from torch._inductor.ir import TensorBox

    often = _mul_sum_decompositions.read_often(node)
    if (
        every
        or often
        or _mul_sum_decompositions.is_padded_for_depthwise(node)
        or _read_by_kernels(node)
        or is_slow_and_broadcast(node)
    ):
        for value in pytree.tree_leaves(result):
            if isinstance(value, TensorBox) and not (often and _is_cast(value)):
                value.realize()


def is_slow_and_broadcast(node: Node) -> bool:
    """Whether a value of tens of instructions, as sines of positions are, is read by larger ones: of each head, in each layer."""
    value, source = node.meta.get("val"), node
    while source.target in _NEXT and isinstance(source.args[0], Node):
        source = source.args[0]
    if source.target not in _SLOW or not isinstance(value, torch.Tensor):
        return False
    count = hint_of(value.numel())
    if isinstance(value.numel(), int) and count < _MANY:
        return False
    return any(hint_of(size) > count for size in map(_numel, _readers(node)))


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if user.target in _VIEWS:
            yield from _readers(user)
        else:
            yield user


def _numel(node: Node) -> Any:
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0


def _read_by_kernels(node: Node) -> bool:
    """Whether kernels of somebody's own read a value, each of which would have it computed anew."""
    return any("triton_kernel_wrapper" in str(user.target) for user in node.users)


def _is_cast(value: Any) -> bool:
    """Whether little more is done for a value than to read it and to change its type."""
    from torch._inductor.ir import Pointwise

    while hasattr(value, "data"):
        value = value.data
    return isinstance(value, Pointwise) and value.inner_fn_opcount().num_ops <= 3
