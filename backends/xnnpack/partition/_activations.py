"""Decompose PReLU into clamp, mul and add where its rank isn't 4, the only one that XNNPACK's operator supports."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.xnnpack.partition._support import MAX_DIMS
from torch.export import ExportedProgram
from torch.fx import Node

_aten = torch.ops.aten


def with_clamps_for_prelu(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with the PReLUs decomposed that XNNPACK's operator doesn't support.

    By default they decompose to a comparison, which XNNPACK lacks, and a ``where``: that splits the partition in two.

    Args:
        program: In ATen, before it is decomposed.
    """
    if any(map(_is_unsupported_prelu, program.graph.nodes)):
        program = program.run_decompositions({})  # the caller's stays as it is
        for node in [*filter(_is_unsupported_prelu, program.graph.nodes)]:
            _replace(node)
    return program


def _is_unsupported_prelu(node: Node) -> bool:
    """Whether a node is a float32 PReLU of a rank other than 4, within ``MAX_DIMS``."""
    if node.target is not _aten.prelu.default:
        return False
    x, weight = (input_node.meta["val"] for input_node in node.all_input_nodes)
    has_rank = x.ndim != 4 and 0 < x.ndim <= MAX_DIMS
    return has_rank and x.dtype == weight.dtype == torch.float32


def _replace(node: Node) -> None:
    graph, name, (x, weight) = node.graph, node.name, node.all_input_nodes
    trailing = x.meta["val"].ndim - 2

    def call(target: Any, *args: Any) -> Node:
        made = graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
        made.meta = {**node.meta, "val": target(*values)}
        return made

    with graph.inserting_before(node):
        if weight.meta["val"].numel() > 1 and trailing > 0:
            weight = call(_aten.view.default, weight, [-1, *[1] * trailing])
        positive, negative = (
            call(_aten.clamp.default, x, *bounds) for bounds in ((0,), (None, 0))
        )
        scaled = call(_aten.mul.Tensor, negative, weight)
        result = call(_aten.add.Tensor, positive, scaled)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
    result._rename(name)  # an output is known by it
