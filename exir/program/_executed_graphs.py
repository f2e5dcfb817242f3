"""Execute a graph in a pass that writes it as it is only where something changed since the last pass executed it.

A pass of ExecuTorch's that edits a graph by itself ends by executing it, for the types of its values, whether it edited it or
not. XNNPACK has a dozen of them, which each partition passes through.

Upstream: ``executorch.exir.pass_base._ExportPassBase.call``.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from executorch.exir.pass_base import ExportPass
from torch.fx import Graph, GraphModule
from torch.fx.passes.infra.pass_base import PassResult

#: What a pass overrides to write another graph than the one that it executes.
_HOOKS = tuple(
    name
    for name in dir(ExportPass)
    if name.startswith(("call_", "Export"))
    or name in ("_fx", "inputs", "on_attr", "output", "placeholder")
)
_EXECUTED = "_executed"


def executed(transform: ExportPass, module: GraphModule) -> PassResult | None:
    """Return the result of a pass that writes a graph as it is, which is as the last pass wrote it; else None."""
    known = vars(module.graph).get(_EXECUTED)
    kind: Any = type(transform)
    if known is None or not _writes_as_it_is(kind):
        return None
    return PassResult(module, True) if known == _State(module.graph) else None


def keep_executed(result: PassResult) -> PassResult:
    """Return a pass's ``result``, whose graph :func:`executed` recognizes while nothing changes it."""
    graph = result.graph_module.graph
    # A tensor of the module's own may change where its node doesn't.
    if not graph.find_nodes(op="get_attr"):
        setattr(graph, _EXECUTED, _State(graph))
    return result


@functools.cache
def _writes_as_it_is(kind: type[ExportPass]) -> bool:
    return all(getattr(kind, name) is getattr(ExportPass, name) for name in _HOOKS)


class _State:
    """What a graph's nodes are and compute, compared by identity: 1 and 1.0 are equal, and fake tensors are compared by operators."""

    def __init__(self, graph: Graph) -> None:
        self._names = [node.name for node in graph.nodes]
        self._parts: list[Any] = []
        for node in graph.nodes:
            self._parts += node, node.target, node.args, node.kwargs
            self._parts.append(node.meta.get("val"))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _State)
            and self._names == other._names
            and all(map(operator.is_, self._parts, other._parts))
        )
