"""Operators that a graph and its branches call, in ATen or edge dialect."""

from __future__ import annotations

from typing import Any, Iterator

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.graph_module import get_control_flow_submodules
from torch.fx import GraphModule, Node


def calls(module: GraphModule) -> Iterator[Node]:
    """Yield the calls of a graph and of its branches."""
    yield from (node for node in module.graph.nodes if node.op == "call_function")
    for _, branch, _ in get_control_flow_submodules(module):
        yield from calls(branch)


def operator_of(node: Node) -> Any:
    """Return what ``node`` calls; for an edge operator the ATen operator that it stands for."""
    target = node.target
    return target._op if isinstance(target, EdgeOpOverload) else target


def module_of(node: Node) -> str:
    """Return the path of the module that a node is of, where nothing has traced it since."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).removeprefix("L['self'].") if stack else ""
    return path or "the method itself"
