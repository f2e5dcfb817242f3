"""Decompose ``split_copy`` and ``detach_copy``, so that ``ReplaceViewCopyWithViewPass`` makes views of them.

AOTInductor has no kernel of its own for ``split_copy``, in which every model ends that computes queries,
keys and values by one matmul, and ExecuTorch has none of ATen's. 1.5 replaces it by ``split``, which no
program with a decomposition to run can hold; it is a ``slice_copy`` for each piece. Nor is there a kernel
for ``detach_copy``, which is ``alias_copy`` where no gradient is.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.fx import GraphModule, Node

_SLICES = {
    torch.ops.aten.split_copy.Tensor: torch.ops.aten.slice_copy.Tensor,
    ops.edge.aten.split_copy.Tensor: ops.edge.aten.slice_copy.Tensor,
}
_ALIASES = {
    torch.ops.aten.detach_copy.default: torch.ops.aten.alias_copy.default,
    ops.edge.aten.detach_copy.default: ops.edge.aten.alias_copy.default,
}
#: Operators of which the pass makes views.
_BECOME_VIEWS = {
    *_SLICES,
    *_SLICES.values(),
    torch.ops.aten.select_copy.int,
    ops.edge.aten.select_copy.int,
}


def decompose_view_copies(graph_module: GraphModule) -> None:
    """Decompose the view copies of a graph and of its branches, in place.

    A branch of control flow must not return a view of its input: it returns a copy.
    """
    graphs = [m for m in graph_module.modules() if isinstance(m, GraphModule)]
    for branch in graphs[1:]:
        _copy_results(branch)
    for graph in graphs:
        for node in list(graph.graph.nodes):
            if _can_be_sliced(node):
                _slice(node)
            elif node.target in _ALIASES:
                node.target = _ALIASES[node.target]
        graph.recompile()


def _copy_results(branch: GraphModule) -> None:
    """Insert copies of a branch's results that operators compute which may become views."""
    output = branch.graph.output_node()
    for result in output.all_input_nodes:
        split = result.args[0] if result.target is operator.getitem else result
        if not isinstance(split, Node) or split.target not in _BECOME_VIEWS:
            continue
        with branch.graph.inserting_before(output):
            copied = branch.graph.call_function(ops.edge.aten.clone.default, (result,))
        copied.meta.update(result.meta)
        output.replace_input_with(result, copied)
    branch.recompile()


def _can_be_sliced(node: Node) -> bool:
    return (
        node.target in _SLICES
        and isinstance(node.args[1], int)
        and all(piece.target is operator.getitem for piece in node.users)
    )


def _slice(split: Node) -> None:
    """Make a slice of each piece of ``split``, under its own name; it ends where the tensor does."""
    tensor, size, dim = (*split.args, 0)[:3]
    for piece in list(split.users):
        start: Any = piece.args[1] * size  # type: ignore[operator]  # an integer, as checked
        piece.target = _SLICES[split.target]
        piece.args = (tensor, dim, start, start + size)
    split.graph.erase_node(split)
