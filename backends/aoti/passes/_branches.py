"""Apply a graph pass to the branches of control flow as well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult

_Call = Callable[[Any, GraphModule], PassResult]


def with_branches(call: _Call) -> _Call:
    """Decorate the ``call`` of a pass that changes one graph: it changes those of branches, too."""

    @functools.wraps(call)
    def call_with_branches(self: Any, graph_module: GraphModule) -> PassResult:
        graphs = [m for m in graph_module.modules() if isinstance(m, GraphModule)]
        modified = [call(self, graph).modified for graph in graphs]
        return PassResult(graph_module, any(modified))

    return call_with_branches
