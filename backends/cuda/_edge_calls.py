"""Match and build operator calls in graphs of the edge dialect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from executorch.exir.dialects._ops import ops
from executorch.exir.program.operators.calls import operator_of
from torch.fx import Graph, Node

aten = ops.edge.aten

#: Conversions from quantized values.
DEQUANTIZE = ("torchao.dequantize_affine", "quantized_decomposed.dequantize_per_")
TRANSPOSED = ("aten.permute", "aten.permute_copy", "aten.t", "aten.t_copy")
COPIES = ("aten.clone", "dim_order_ops._clone_dim_order")
CASTS = ("aten._to_copy", "dim_order_ops._to_dim_order_copy")


def is_call(node: Any, names: Iterable[str]) -> bool:
    """Whether a node calls one of the operators of these names, which have no overload."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    name = str(operator_of(node))
    return name.startswith(tuple(f"{package}." for package in names)) or (
        names is DEQUANTIZE and name.startswith(DEQUANTIZE)
    )


def named(node: Node) -> dict[str, Any]:
    """Return the arguments of a call by the names that the operator's schema has for them."""
    parameters = operator_of(node)._schema.arguments
    defaults = {p.name: p.default_value for p in parameters if p.has_default_value()}
    positional = zip(parameters, node.args, strict=False)
    return {**defaults, **{p.name: value for p, value in positional}, **node.kwargs}


class Writer:
    """Writes calls into a graph before a node, with the fake values that they have."""

    def __init__(self, before: Node) -> None:
        self._graph: Graph = before.graph
        self._before = before

    def __call__(self, operator: Any, *args: Any, **kwargs: Any) -> Node:
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(operator, args, kwargs)
        values, by_name = torch.fx.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = operator(*values, **by_name)
        return node

    def to(self, value: Node, dtype: torch.dtype) -> Node:
        if value.meta["val"].dtype == dtype:
            return value
        return self(aten._to_copy.default, value, dtype=dtype)

    def view(self, value: Node, *shape: int) -> Node:
        return self(aten.view_copy.default, value, list(shape))
