"""Fake tensors of a graph's nodes, in one fake mode.

Compiling leaves some nodes without, or with another node's, and from 2.14 on upstream's rewrite of
complex numbers makes new ones in a mode of their own, which PyTorch refuses to mix.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.node import map_arg


def mode_of(graph: Graph) -> FakeTensorMode:
    """Return the mode of the graph's fake tensors; of several, one that has symbolic sizes."""
    modes = dict.fromkeys(
        value.fake_mode
        for node in graph.nodes
        if isinstance(value := node.meta.get("val"), FakeTensor)
    )
    symbolic = (m for m in modes if m.shape_env and m.shape_env.var_to_range)
    return next(symbolic, next(iter(modes), None)) or FakeTensorMode()


def normalize_values(graph: Graph) -> FakeTensorMode:
    """Replace missing or wrong fake tensors of nodes; return their common fake mode."""
    mode = mode_of(graph)
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.target is getitem and isinstance(value, (list, tuple)):
            # Upstream leaves an engine's only output the list of them.
            value = node.meta["val"] = value[node.args[1]]
        if value is None and node.target is torch.ops.aten._to_copy.default:
            # Upstream casts around engines under truncate_double.
            node.meta["val"] = _run(node, mode)
        elif isinstance(value, FakeTensor) and value.fake_mode is not mode:
            operator = isinstance(node.target, torch._ops.OpOverload)
            node.meta["val"] = _run(node, mode) if operator else _like(value, mode)
    return mode


def _run(node: Node, mode: FakeTensorMode) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _like(value: FakeTensor, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
