"""Fold uniform constants on the CPU, where Inductor would fold them on the target GPU.

It evaluates parts of the graph on tensors of one element, which it makes on the graph's device, and
puts the values that come out of it into the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtrt_executorch.nogpu.inductor.host_weights import (
    is_stand_in,
)

_FOLDER = "torch._inductor.fx_passes.joint_graph:UniformValueConstantFolder"


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the overrides that fold constants on the CPU."""
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    deduce = UniformValueConstantFolder._deduce_value

    def deduce_on_cpu(self: Any, node: torch.fx.Node) -> Any:
        if node.target is torch.ops.prims.device_put.default:
            (value, *_), _ = self.fetch_args_kwargs_from_env(node)
            return value
        written = node.kwargs
        if written.get("device") is not None:
            node.kwargs = {**written, "device": torch.device("cpu")}
        try:
            value = deduce(self, node)
        finally:
            node.kwargs = written
        return value.host_bytes.packed() if is_stand_in(value) else value

    return {
        f"{_FOLDER}._deduce_value": deduce_on_cpu,
        # Multiplications by a literal zero: they are computed instead.
        f"{_FOLDER}._add_peephole_patterns": lambda self: None,
    }
