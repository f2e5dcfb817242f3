"""Copies of graphs, and graphs made programs, for what has to do without torch_tensorrt."""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

load_alone("torch_tensorrt.dynamo._lifting")

# isort: split
from torch_tensorrt.dynamo._lifting import copied_graph, lifted_program  # noqa: E402

__all__ = ["copied_graph", "lifted_program"]
