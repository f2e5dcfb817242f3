"""Rewrite calls that ExecuTorch's portable kernels reject, or compute differently from PyTorch.

``remainder`` of integers is C++'s ``%`` there, which has the sign of the dividend: ``-1 % 4`` is -1, and 3 in PyTorch.
``constant_pad_nd`` takes no negative padding, as a shift by one row has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

_EDGE = exir_ops.edge.aten


class PortableKernelsPass(PassBase):
    """Computes a remainder of integers by a floor division, and cuts by a slice.

    Takes edge programs once partitioners have taken what they support, and changes them in place, branches included.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Rewrites them, and says whether there are any."""
        changed = False
        for module in graph_module.modules():
            if not isinstance(module, GraphModule):
                continue
            nodes = [node for node in module.graph.nodes if node.target in _REWRITES]
            if any([_REWRITES[node.target](node) for node in nodes]):
                module.graph.eliminate_dead_code()
                module.recompile()
                changed = True
        return PassResult(graph_module, changed)


def _floor_remainder(node: Node) -> bool:
    """Replace ``x % y`` of integers by ``x - floor(x / y) * y``."""
    value = node.meta["val"]
    if value.is_floating_point():
        return False
    dividend, divisor = node.args
    with node.graph.inserting_before(node):
        if not isinstance(divisor, Node):
            with value.fake_mode:
                scalar = torch.empty((), dtype=value.dtype)
            divisor = _call(
                node, scalar, _EDGE.full.default, (), divisor, dtype=value.dtype
            )
        quotient = _call(
            *(node, value, _EDGE.div.Tensor_mode, dividend, divisor),
            rounding_mode="floor",
        )
        multiple = _call(node, value, _EDGE.mul.Tensor, quotient, divisor)
        difference = _call(node, value, _EDGE.sub.Tensor, dividend, multiple)
    node.replace_all_uses_with(difference)
    return True


def _cut_by_slices(node: Node) -> bool:
    """Replace negative padding by slices, and pad by the rest."""
    source: Any = node.args[0]
    padding: Any = node.args[1]
    if not all(isinstance(width, int) for width in padding) or min(padding) >= 0:
        return False
    last = source.meta["val"].ndim - 1
    with node.graph.inserting_before(node):
        for place in range(0, len(padding), 2):
            begin, end = (min(width, 0) for width in padding[place : place + 2])
            if begin or end:
                where = (last - place // 2, -begin, end or sys.maxsize)
                fake_source = source.meta["val"]
                sizes = [*fake_source.shape]
                sizes[where[0]] += begin + end
                with fake_source.fake_mode:
                    value = torch.empty(sizes, dtype=fake_source.dtype)
                source = _call(node, value, _EDGE.slice_copy.Tensor, source, *where)
        widths = [max(width, 0) for width in padding]
        if any(widths):
            rest = (source, widths, *node.args[2:])
            source = _call(node, node.meta["val"], node.target, *rest)
    node.replace_all_uses_with(source)
    return True


_REWRITES: dict[Any, Callable[[Node], bool]] = {
    _EDGE.remainder.Tensor: _floor_remainder,
    _EDGE.remainder.Scalar: _floor_remainder,
    _EDGE.constant_pad_nd.default: _cut_by_slices,
}


def _call(node: Node, value: Any, operator: Any, *args: Any, **kwargs: Any) -> Node:
    """Return a call that stands for a part of ``node``, and returns ``value``."""
    result = node.graph.call_function(operator, args, kwargs)
    result.meta = {**node.meta, "val": value}
    return result
