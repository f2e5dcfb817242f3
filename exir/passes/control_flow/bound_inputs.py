"""Leave inputs of loop bodies that the emitter binds to outer values out of memory planning.

The bodies of ``map`` and ``scan`` are planned with memory for all of their inputs, but only slices of the inputs that are looped
over are written there: the emitter binds the carry and the other inputs to the values outside. A view of a bound input is elided
if that is planned, and then reads memory that is never written. Without planning it is emitted, and reads the value.

Upstream: ``executorch.exir.memory_planning``.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator

import torch
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule


def skips_bound_inputs(
    algo: Callable[..., Any], graph_module: GraphModule
) -> Callable[..., Any]:
    """Wrap a memory planning algorithm so that it skips the bound inputs of the loops that ``graph_module`` calls."""
    bound = {*_bound_inputs(graph_module)}

    @functools.wraps(algo)
    def plan(alignment: int, specs: Any, *args: Any) -> Any:
        return algo(alignment, [s for s in specs if s not in bound], *args)

    return plan


def _bound_inputs(graph_module: GraphModule) -> Iterator[TensorSpec]:
    for node in graph_module.graph.nodes:
        if node.target is torch.ops.higher_order.map_impl:
            sliced = range(len(node.args[1]))
        elif node.target is torch.ops.higher_order.scan:
            carries, xs = map(len, node.args[1:3])
            sliced = range(carries, carries + xs)
        else:
            continue
        body = getattr(graph_module, node.args[0].target)
        for index, value in enumerate(body.graph.find_nodes(op="placeholder")):
            if index not in sliced and isinstance(value.meta["spec"], TensorSpec):
                yield value.meta["spec"]
