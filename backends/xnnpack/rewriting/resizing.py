"""Rewrite nearest resizing by integer factors, which repeats pixels, as a broadcast multiplication by ones."""

from __future__ import annotations

from typing import Any

from executorch.backends.xnnpack.rewriting.graph_builder import (
    GraphBuilder,
    edge,
    value_of,
)
from torch.fx import Node


def by_ones(builder: GraphBuilder) -> Node | None:
    """Rewrite a nearest resizing of fixed sizes by integer factors as a broadcast multiplication."""
    x: Any = builder.args[0]
    shape, wanted = value_of(x).shape, value_of(builder.node).shape
    sizes = [*shape[2:], *wanted[2:]]
    if not all(isinstance(size, int) for size in sizes):
        return None
    if any(after % before for before, after in zip(shape[2:], wanted[2:], strict=True)):
        return None
    expanded_shape, times = [*shape[:2]], []
    for before, after in zip(shape[2:], wanted[2:], strict=True):
        expanded_shape += [before, 1]
        times += [1, after // before]
    ones = builder.constants.full((*times,), 1.0, value_of(x).dtype)
    repeated = builder.call(edge.mul.Tensor, builder.view(x, expanded_shape), ones)
    return builder.view(repeated, wanted)
