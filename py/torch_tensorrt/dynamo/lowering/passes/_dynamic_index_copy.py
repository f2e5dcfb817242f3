"""Lower ``index_copy`` with dynamic shapes to ``index_put``.

Up to 2.13 it is decomposed. From 2.14 on there are converters for it, of static shapes alone.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

_COPY = torch.ops.aten.index_copy.default


def lower_dynamic_index_copy(gm: GraphModule, settings: Any) -> GraphModule:
    """Replace what writes a dynamic number of rows, unless ``torch_executed_ops`` has it; return the graph."""
    if {_COPY, f"torch.ops.{_COPY}"} & set(settings.torch_executed_ops):
        return gm
    replaced = False
    for node in gm.graph.find_nodes(op="call_function", target=_COPY):
        written, dim, index, source = node.args
        shapes = [_shape(gm, each) for each in (written, index, source)]
        if len(shapes[1]) == 1 and any(map(_is_dynamic, shapes)):
            before = [None] * (dim % len(shapes[0]))
            node.target = torch.ops.aten.index_put.default
            node.args = (written, [*before, index], source)
            replaced = True
    if replaced:
        gm.recompile()
    return gm


def _shape(gm: GraphModule, node: Node) -> torch.Size:
    if node.op == "get_attr":  # what was folded has no value of its own
        return operator.attrgetter(str(node.target))(gm).shape
    return node.meta["val"].shape


def _is_dynamic(shape: torch.Size) -> bool:
    return any(isinstance(size, torch.SymInt) for size in shape)
