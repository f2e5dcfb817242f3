"""Amends ``backends``: ``torch.compile`` keeps what a model writes in place.

Upstream's usual way through the backend clones every input first, so that such writes are lost.
Its way for higher-order operators, through AOTAutograd, writes back: it is taken as well where
Dynamo saw a write.

Upstream: ``torch_tensorrt.dynamo.backend.backends``.
"""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch.fx import GraphModule


def apply(module: ModuleType) -> None:
    """Widen the test by which upstream chooses."""
    chosen = module._graph_has_higher_order_ops

    @functools.wraps(chosen)
    def needs_autograd(graph_module: GraphModule) -> bool:
        return chosen(graph_module) or _writes_to_inputs(graph_module)

    vars(module).update(_graph_has_higher_order_ops=needs_autograd)


def _writes_to_inputs(graph_module: GraphModule) -> bool:
    values = (
        node.meta.get("example_value")
        for node in graph_module.graph.find_nodes(op="placeholder")
    )
    # Dynamo runs each operator on the examples: one that was written to is not at version 0.
    return any(isinstance(v, torch.Tensor) and v._version > 0 for v in values)
