"""Keep the branches of control flow out of engines, with the global partitioner.

By itself it puts the branches, which are attributes of the graph, into engines, as if they were weights;
and ``compile_module`` takes each graph module for an engine, and ends in "true_graph_0 does not exist in the
submodule node dictionary".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node
from torch.nn import Module

#: The module that holds them while engines are built.
_ASIDE = "_branches"


def without_branches(partition: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a partitioner so that branch modules are set aside while it runs, outside of engines."""

    @functools.wraps(partition)
    def partition_rest(gm: GraphModule, *args: Any, **kwargs: Any) -> Any:
        branches = {}
        for node in gm.graph.find_nodes(op="get_attr"):
            if isinstance(branch := getattr(gm, str(node.target), None), GraphModule):
                branches[str(node.target)] = branch
                _replace(node, "call_function", _branch, (node.target,))
        result = partition(gm, *args, **kwargs)
        partitioned: GraphModule = result[0]
        for graph in {gm.graph, partitioned.graph}:
            for node in graph.find_nodes(op="call_function", target=_branch):
                _replace(node, "get_attr", node.args[0], ())
        if branches:
            _set_aside(partitioned, branches)
        return result

    return partition_rest


def _branch(name: str) -> None:
    """Placeholder of a branch, by its name, in a graph; it has no converter."""


def with_branches(compiled: GraphModule) -> GraphModule:
    """Return a compiled module with the branches where the graph had them."""
    if isinstance(aside := getattr(compiled, _ASIDE, None), Module):
        branches = dict(aside.named_children())
        delattr(compiled, _ASIDE)
        for name, branch in branches.items():
            compiled.add_module(name, branch)
        _rename(compiled, {f"{_ASIDE}.{name}": name for name in branches})
    return compiled


def _set_aside(module: GraphModule, branches: dict[str, GraphModule]) -> None:
    aside = Module()
    for name, branch in branches.items():
        if hasattr(module, name):  # not a copy's, of a graph that doesn't refer to it
            delattr(module, name)
        aside.add_module(name, branch)
    module.add_module(_ASIDE, aside)
    _rename(module, {name: f"{_ASIDE}.{name}" for name in branches})


def _rename(module: GraphModule, targets: dict[str, str]) -> None:
    for node in module.graph.find_nodes(op="get_attr"):
        node.target = targets.get(str(node.target), node.target)
    module.recompile()


def _replace(node: Node, op: str, target: Any, args: tuple[Any, ...]) -> None:
    with node.graph.inserting_before(node):
        new = node.graph.create_node(op, target, args, name=node.name)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
