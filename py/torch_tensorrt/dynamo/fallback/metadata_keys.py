"""Keys of node metadata that survive decomposition and export."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

IN_PYTORCH = "torch_tensorrt.in_pytorch"
"""In a node's metadata: why TensorRT rejected it from the engine that it got into."""

PART_OF = "torch_tensorrt.part_of"
"""In a node's metadata: the name of the operator that was decomposed into it for an engine."""

WHY_IN_PYTORCH = "torch_tensorrt.why_in_pytorch"
"""In a node's metadata: why it is in no engine."""

WHY_IN_PYTORCH_OF = "torch_tensorrt.why_in_pytorch_of"
"""The operator that ``WHY_IN_PYTORCH`` is true of: the node is one of its parts, if it isn't the node's own."""

LEFT_TO_OTHERS = "torch_tensorrt.left_to_others"
"""In a node's metadata: why the partitioner that compiles the program excludes it."""

OWNER = "torch_tensorrt.partitioner"
"""The ``id`` of the one partitioner that is to claim the engine node."""

AS_FLOAT32 = "compile with truncate_double=True"
"""How to have TensorRT compute float64 values in float32, for messages."""

IN_FLOAT32 = "TensorRT computes in float32 what is in float64 here, as truncate_double=True asks for"
"""The reason recorded at casts that compilation inserts at an engine's inputs and outputs."""


def set_note(node: Node, key: str, value: Any) -> None:
    """Note ``value`` at ``node``, where decompositions and exporters keep it, and at no copy of it."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), key: value}


def note_of(node: Node, key: str) -> Any:
    """Return the note of ``node`` under ``key``; None without."""
    return (node.meta.get("custom") or {}).get(key)
