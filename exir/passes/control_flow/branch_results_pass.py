"""Keep results of ``torch.cond`` alive while later branches run.

Upstream: pytorch/executorch#21490. The branches of all control flow in a graph are planned into the same
memory, and what a ``cond`` returns stays where its branch has made it: the emitter's ``MoveCall`` moves
no bytes. So the next branch that runs writes over it, and a view of it, which is planned where the
``cond`` was to have its result, shows something else.
"""

from __future__ import annotations

from itertools import zip_longest

import torch
from executorch.exir.passes._aliases import may_be_view
from executorch.exir.passes._pre_write_snapshots import copy_before
from executorch.exir.passes.devices.nodes import is_getitem
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

#: Control flow whose bodies are planned into memory that they share.
_CONTROL_FLOW = frozenset(
    getattr(torch.ops.higher_order, name)
    for name in ("cond", "map_impl", "scan")
    if hasattr(torch.ops.higher_order, name)
)


class BranchResultsPass(PassBase):
    """Copy results of ``cond`` that are viewed, or read after other branches may have run.

    The copy stands right after the ``cond``, and is planned like any other value. Results that are
    read before the next control flow stay where they are, and so do those of ``map`` and ``scan``,
    which have memory of their own. Takes edge programs, their branches included, and changes them in
    place.
    """

    def call(self, graph_module: GraphModule) -> PassResult:
        """Insert the copies of a program, in place."""
        changed = False
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                changed |= _keep_results(module)
        return PassResult(graph_module, changed)


def _keep_results(module: GraphModule) -> bool:
    nodes = list(module.graph.nodes)
    places = {node: place for place, node in enumerate(nodes)}
    bodies = [node for node in nodes if node.target in _CONTROL_FLOW]
    changed = False
    for cond, following in zip_longest(bodies, bodies[1:]):
        if cond.target is not torch.ops.higher_order.cond:
            continue
        safe = places[following] if following else len(nodes)
        end = cond
        for result in [user for user in cond.users if is_getitem(user)]:
            if any(places[user] >= safe or may_be_view(user) for user in result.users):
                end.append(result)
                end = _copied(result)
                changed = True
    if changed:
        module.graph.lint()
        module.recompile()
    return changed


def _copied(value: Node) -> Node:
    copy = copy_before(value, value.next)
    value.replace_all_uses_with(copy, lambda user: user is not copy)
    return copy
