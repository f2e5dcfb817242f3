"""Input mutations in graphs of ``torch.compile``.

The usual way through the backend clones every input first, so that such writes are lost. Its way for
higher-order operators, through AOTAutograd, writes back.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule


def writes_to_inputs(graph_module: GraphModule) -> bool:
    """Whether Dynamo saw a write to an input."""
    values = (
        node.meta.get("example_value")
        for node in graph_module.graph.find_nodes(op="placeholder")
    )
    # Dynamo runs each operator on the examples: one that was written to is not at version 0.
    return any(isinstance(v, torch.Tensor) and v._version > 0 for v in values)
