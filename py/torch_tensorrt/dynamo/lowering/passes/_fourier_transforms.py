"""Leave Fourier transforms that are only read as real and imaginary parts to later partitioners.

TensorRT has none, and Torch-TensorRT's rewriting of complex arithmetic fails on them.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_TRANSFORM = _aten._fft_r2c.default
_PARTS = {_aten.view_as_real.default, _aten.view_as_real_copy.default}


def computes_in_real_numbers(module: GraphModule) -> bool:
    """Whether a graph's only complex values are transforms of real ones that only ``view_as_real`` reads."""
    return all(
        node.target is _TRANSFORM and {user.target for user in node.users} <= _PARTS
        for node in module.graph.nodes
        if _is_complex(node)
    )


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()
