"""Inline scalar constants of control flow, so that AOTInductor compiles them as code.

Inductor makes a number of a scalar constant, and fails on a loop that begins with a number: a counter. And the passes to
edge dialect make a tensor of each number in a branch (``x + 1``), and leave it an attribute of the branch, which nothing
of ``torch.export`` does. No pass moves it to the device, and AOTInductor fails on it: "Attempting to use FunctionalTensor
on its own".
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

_WHILE = torch.ops.higher_order.while_loop


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


def inline_loop_constants(program: ExportedProgram) -> None:
    """Compute by ``full`` the scalar constants of a program that has a ``while_loop``; in place."""
    graph = program.graph
    if not graph.find_nodes(op="call_function", target=_WHILE):
        return
    placeholders = graph.find_nodes(op="placeholder")
    for node, value in get_constant_placeholder_dict(program).items():
        if value.ndim == 0 and node.users:
            with graph.inserting_after(placeholders[-1]):
                node.replace_all_uses_with(_full(node, value))
    program.graph_module.recompile()


def _inline(node: Node, value: torch.Tensor) -> None:
    graph, name = node.graph, str(node.target)
    with graph.inserting_before(node):
        number = _full(node, value)
    node.replace_all_uses_with(number)
    graph.erase_node(node)
    if not any(
        attribute.target == name for attribute in graph.find_nodes(op="get_attr")
    ):
        delattr(graph.owning_module, name)  # else the verifier looks for it


def _full(node: Node, value: torch.Tensor) -> Node:
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
    full = ops.edge.aten.full.default
    number = node.graph.call_function(full, ([], value.item()), options)
    number.meta.update(node.meta)
    return number
