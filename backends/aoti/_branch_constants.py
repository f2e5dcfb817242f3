"""Inline scalar constants of control-flow branches, so that AOTInductor compiles them as code.

The passes to edge dialect make a tensor of each number in a branch (``x + 1``), and leave it an attribute of
the branch, which nothing of ``torch.export`` does. No pass moves it to the device, and AOTInductor fails on it:
"Attempting to use FunctionalTensor on its own".
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from torch.fx import GraphModule, Node


def inline_branch_constants(module: GraphModule) -> None:
    """Compute by ``full`` what branches of ``module`` hold as tensors of no dimension; in place."""
    for branch in module.modules():
        if branch is module or not isinstance(branch, GraphModule):
            continue
        for node in branch.graph.find_nodes(op="get_attr"):
            value = getattr(branch, str(node.target), None)
            if isinstance(value, torch.Tensor) and value.ndim == 0:
                _inline(node, value)
        branch.recompile()


def _inline(node: Node, value: torch.Tensor) -> None:
    graph, name = node.graph, str(node.target)
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    with graph.inserting_before(node):
        full = ops.edge.aten.full.default
        number = graph.call_function(full, ([], value.item()), options)
    number.meta.update(node.meta)
    node.replace_all_uses_with(number)
    graph.erase_node(node)
    if not any(each.target == name for each in graph.find_nodes(op="get_attr")):
        delattr(graph.owning_module, name)  # else the verifier looks for it
