"""Amends ``_aten_lowering_pass``: what writes a dynamic number of rows, as a cache's prefill does, stays in its engine.

Upstream decomposes ``index_copy`` up to 2.13. From 2.14 on it has converters for it, of static shapes
alone, while that of ``index_put``, which is the decomposition, takes any.

Upstream: ``torch_tensorrt.dynamo.lowering.passes._aten_lowering_pass``, whose ``post_lowering`` lowers what
is compiled, refitted, or given to ``torch.compile``.
"""

from __future__ import annotations

import operator
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchtrt_executorch.overlay.wrapping import wrapped

_COPY = torch.ops.aten.index_copy.default


def apply(module: ModuleType) -> None:
    """Wrap what lowers a graph, before anybody has taken it from here."""
    vars(module)["post_lowering"] = wrapped(module.post_lowering, _lowered)


def _lowered(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    gm: GraphModule = function(*args, **kwargs)
    settings = kwargs["settings"] if "settings" in kwargs else args[1]
    if not {_COPY, f"torch.ops.{_COPY}"} & set(settings.torch_executed_ops):
        _write_dynamic_copies_as_puts(gm)
    return gm


def _write_dynamic_copies_as_puts(gm: GraphModule) -> None:
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


def _shape(gm: GraphModule, node: Node) -> torch.Size:
    if node.op == "get_attr":  # what was folded has no value of its own
        return operator.attrgetter(str(node.target))(gm).shape
    return node.meta["val"].shape


def _is_dynamic(shape: torch.Size) -> bool:
    return any(isinstance(size, torch.SymInt) for size in shape)
