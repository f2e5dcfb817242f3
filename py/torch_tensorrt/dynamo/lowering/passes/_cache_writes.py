"""Lower writes into caches to operators that TensorRT converts for any shape and type.

Up to 2.13 ``index_copy`` is decomposed. From 2.14 on there are converters for it, only of static shapes. Of what looks
like a write into a cache of keys they and that of ``slice_scatter`` make an ``IKVCacheUpdateLayer``, which writes into
the engine's input: it only takes floating point, and the engine keeps its output to itself. So a cache that the graph
returns, as a program without in-place writes does, isn't written so.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

_COPY = torch.ops.aten.index_copy.default
_SCATTER = torch.ops.aten.slice_scatter.default


def lower_cache_writes(gm: GraphModule, settings: Any) -> GraphModule:
    """Replace the writes that have no converter or a wrong one, unless ``torch_executed_ops`` has them; return the graph.

    Args:
        gm: ATen operators, without in-place writes. ``index_copy`` becomes ``index_put``, ``slice_scatter`` a ``cat``.
        settings: ``CompilationSettings``.
    """
    replaced = False
    for target, replace in ((_COPY, _replace_copy), (_SCATTER, _replace_scatter)):
        if {target, f"torch.ops.{target}"} & set(settings.torch_executed_ops):
            continue
        for node in gm.graph.find_nodes(op="call_function", target=target):
            replaced |= replace(gm, node)
    if replaced:
        gm.recompile()
    return gm


def _replace_copy(gm: GraphModule, node: Node) -> bool:
    arguments: Any = node.args
    written, dim, index, source = arguments
    values = [_value(gm, operand) for operand in (written, index, source)]
    dynamic = any(_is_dynamic(value.shape) for value in values)
    if values[1].dim() != 1 or not (
        dynamic or not values[0].is_floating_point() or _is_returned(node)
    ):
        return False
    before = [None] * (dim % values[0].dim())
    node.target = torch.ops.aten.index_put.default
    node.args = (written, [*before, index], source)
    return True


def _replace_scatter(gm: GraphModule, node: Node) -> bool:
    """Return the cache up to the slice, the slice, and the cache behind it."""
    written, source, dim, start, end, step = _arguments(node)
    shape = _value(gm, written).shape
    bounds = (start, end, step)
    if not _is_returned(node) or _is_dynamic(shape):
        return False
    if step != 1 or not all(isinstance(bound, (int, type(None))) for bound in bounds):
        return False
    begin, stop, _ = slice(start, end).indices(shape[dim])
    with gm.graph.inserting_before(node):
        parts = [
            _slice(gm, written, dim, first, last)
            for first, last in ((0, begin), (max(begin, stop), shape[dim]))
        ]
    head, tail = parts
    whole = [
        *([head] if begin > 0 else []),
        *([source] if stop > begin else []),
        *([tail] if max(begin, stop) < shape[dim] else []),
    ]
    for part in parts:
        if part not in whole:
            gm.graph.erase_node(part)
    node.target, node.kwargs = torch.ops.aten.cat.default, {}
    node.args = (whole, dim)
    return True


def _slice(gm: GraphModule, node: Any, dim: int, start: int, end: int) -> Node:
    part = gm.graph.call_function(
        torch.ops.aten.slice.Tensor, (node, dim, start, end, 1)
    )
    part.meta["val"] = _value(gm, node).narrow(dim, start, end - start)
    return part


def _arguments(node: Node) -> list[Any]:
    """Of ``slice_scatter``, with its defaults."""
    names = ("dim", "start", "end", "step")
    defaults = {"dim": 0, "start": None, "end": None, "step": 1}
    arguments = {**dict(zip(names, node.args[2:], strict=False)), **node.kwargs}
    return [*node.args[:2], *({**defaults, **arguments}[name] for name in names)]


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _value(gm: GraphModule, node: Any) -> torch.Tensor:
    if node.op == "get_attr":  # what was folded has no value of its own
        return operator.attrgetter(str(node.target))(gm)
    return node.meta["val"]


def _is_dynamic(shape: torch.Size) -> bool:
    return any(isinstance(size, torch.SymInt) for size in shape)
