"""Trace graphs again where operators may return other strides."""

from __future__ import annotations

import torch
from torch.fx import Graph


def let_views_copy(graph: Graph) -> None:
    """Make ``aten.reshape`` of each ``aten.view``, in place.

    Tracing makes reshapes views by the strides at that time. Decomposed attention returns other strides, for
    which the view may be invalid.
    """
    views = graph.find_nodes(op="call_function", target=torch.ops.aten.view.default)
    for view in views:
        view.target = torch.ops.aten.reshape.default
