"""Branches of control flow beside engines in one graph, as the global partitioner leaves them.

Upstream's puts the branches, which are attributes of the graph, into engines, as if they were weights;
and its ``compile_module`` takes each graph module for an engine, and ends in "true_graph_0 does not exist
in the submodule node dictionary".
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Callable

from torch.fx import GraphModule, Node
from torch.nn import Module

#: The module that holds them while engines are built.
_ASIDE = "_branches"


def partition_without_branches(
    partition: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Partition with the branches out of sight, and leave them in a module of their own.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``global_partition``.
    """
    module = signature(partition).bind(*args, **kwargs).arguments["gm"]
    branches = {}
    for node in module.graph.find_nodes(op="get_attr"):
        if isinstance(held := getattr(module, str(node.target), None), GraphModule):
            branches[str(node.target)] = held
            _replace(node, "call_function", _branch, (node.target,))
    result = partition(*args, **kwargs)
    partitioned: GraphModule = result[0]
    for graph in {module.graph, partitioned.graph}:
        for node in graph.find_nodes(op="call_function", target=_branch):
            _replace(node, "get_attr", node.args[0], ())
    if branches:
        _set_aside(partitioned, branches)
    return result


def _branch(name: str) -> None:
    """Stand in a graph for a branch by its name; no converter takes it."""


def compile_with_branches(
    compile_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile, and put the branches back where the graph had them.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``compile_module``.
    """
    compiled = compile_module(*args, **kwargs)
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
