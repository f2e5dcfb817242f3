"""Insert layout copies around the operators whose portable kernels only compute contiguous tensors.

Given channels-last operands, some kernels fail (0x12: index, select, slice, softmax); others read them as contiguous and return
wrong values (cat, flip, gather, constant_pad_nd, layer_norm, log_softmax, topk).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils import _pytree as pytree

_CLONE = exir_ops.edge.dim_order_ops._clone_dim_order.default
_COPIES = (_CLONE, exir_ops.edge.dim_order_ops._to_dim_order_copy.default)
_aten = torch.ops.aten
#: Operators whose kernels read any layout, and write that of the first operand.
_ANY_LAYOUT = frozenset(
    (
        _aten.convolution.default,
        _aten.max_pool2d_with_indices.default,
        _aten.avg_pool2d.default,
        _aten._adaptive_avg_pool2d.default,
        _aten.upsample_bilinear2d.vec,
        _aten.upsample_nearest2d.vec,
    )
)
_LAYOUTS = ("dim_order_ops::", "executorch_prim::", "et_copy::")


class ContiguousOperandsPass(PassBase):
    """Insert layout copies where host operators need contiguous values; delegates and outputs keep their layouts.

    Runs on edge programs after partitioning, and changes them in place, branches included. A value is copied once each
    way; between two such operators it isn't copied.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Insert the copies of a program, in place."""
        changed = False
        for module in graph_module.modules():
            if not isinstance(module, GraphModule):
                continue
            contiguous: dict[Node, Node] = {}
            for node in [*module.graph.nodes]:
                if node.target in _COPIES and _is_either(node.meta["val"]):
                    changed |= _make_contiguous(node)
                elif _computes_contiguously(node):
                    _insert_layout_copies(node, contiguous)
                    changed = True
            if contiguous:
                module.graph.eliminate_dead_code()
                module.recompile()
        return PassResult(graph_module, changed)


def _computes_contiguously(node: Node) -> bool:
    """Whether a host kernel needs contiguous operands or results, and one of them isn't contiguous."""
    if not isinstance(node.target, EdgeOpOverload):
        return False
    called = node.target._op
    if called in _ANY_LAYOUT or called._schema.name.startswith(_LAYOUTS):
        return False
    results = pytree.tree_leaves(node.meta["val"])
    tensors = [
        results,
        *(input_node.meta["val"] for input_node in node.all_input_nodes),
    ]
    layouts = {_is_contiguous(leaf) for leaf in pytree.tree_leaves(tensors)}
    # Pointwise operators of one operand are right in its own layout.
    unary = len(node.all_input_nodes) == 1 and torch.Tag.pointwise in called.tags
    if layouts == {True} or (unary and layouts == {False}):
        return False
    # A delegate is compiled for its inputs' layouts, and channels-last is the only other one that a copy can restore.
    outside = any(user.target is executorch_call_delegate for user in _readers(node))
    return not outside or all(_can_restore(result) for result in results)


def _make_contiguous(copy: Node) -> bool:
    """Set a copy's dim order to contiguous where both layouts are identical in memory.

    ExecuTorch would derive another from its strides.
    """
    value = copy.meta["val"]
    if _is_contiguous(value):
        return False
    copy.kwargs = {**copy.kwargs, "dim_order": [*range(value.ndim)]}
    copy.meta["val"] = _in_order(value)
    return True


def _in_order(value: torch.Tensor) -> torch.Tensor:
    """Return a contiguous fake tensor of the same sizes."""
    with value.fake_mode:  # type: ignore[attr-defined]
        return torch.empty(value.shape, dtype=value.dtype, device=value.device)


def _insert_layout_copies(node: Node, contiguous: dict[Node, Node]) -> None:
    """Feed ``node`` contiguous operands, and restore its results' layouts for their users.

    Args:
        contiguous: Contiguous copies so far, by the value that each is a copy of; new ones are added.
    """
    graph, before = node.graph, node.meta["val"]
    for read in node.all_input_nodes:
        if _is_contiguous(read.meta["val"]):
            continue
        if read not in contiguous:
            with graph.inserting_after(read):
                contiguous[read] = _copied(read, _in_order(read.meta["val"]))
        node.replace_input_with(read, contiguous[read])
    node.meta["val"] = pytree.tree_map_only(torch.Tensor, _in_order, before)
    if isinstance(before, torch.Tensor):
        _restore(node, before, contiguous)
        return
    for user in [*node.users]:
        index: Any = user.args[1]
        user.meta["val"] = node.meta["val"][index]
        _restore(user, before[index], contiguous)


def _restore(node: Node, before: torch.Tensor, contiguous: dict[Node, Node]) -> None:
    """Insert a copy of ``node`` in the layout of ``before`` for its users, if the two layouts differ."""
    if _is_contiguous(before) or not _can_restore(before) or _is_either(before):
        return
    if before.dim_order() == node.meta["val"].dim_order():
        return
    users = [*node.users]
    with node.graph.inserting_after(node):
        copy = _copied(node, before)
    for user in users:
        user.replace_input_with(node, copy)
    contiguous[copy] = node


def _readers(node: Node) -> Iterator[Node]:
    """Yield the readers of the results of ``node``."""
    for user in node.users:
        if user.target is operator.getitem:
            yield from user.users
        else:
            yield user


def _can_restore(value: Any) -> bool:
    """Whether a copy can restore a value's layout: contiguous or channels-last."""
    return _is_contiguous(value) or value.dim_order() == (0, 2, 3, 1)


def _is_either(value: Any) -> bool:
    """Whether contiguous and channels-last are identical in memory: one channel, or one pixel."""
    if not isinstance(value, torch.Tensor) or value.ndim != 4:
        return False
    one = [isinstance(size, int) and size == 1 for size in value.shape]
    return one[1] or (one[2] and one[3])


def _copied(node: Node, value: torch.Tensor) -> Node:
    """Return a copy of ``node`` in the layout of ``value``."""
    order = [*value.dim_order()]
    copy = node.graph.call_function(_CLONE, (node,), {"dim_order": order})
    copy.meta = {**node.meta, "val": value}
    return copy


def _is_contiguous(value: Any) -> bool:
    """Whether a value's dimensions are in order; anything but a strided tensor counts as such."""
    return (
        not isinstance(value, torch.Tensor)
        or value.layout != torch.strided
        or value.dim_order() == (*range(value.ndim),)
    )
