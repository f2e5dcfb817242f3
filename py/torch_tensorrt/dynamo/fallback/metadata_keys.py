"""Keys of node metadata that survive decomposition and export."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

IN_PYTORCH = "torch_tensorrt.in_pytorch"
"""In a node's metadata: why TensorRT rejected it from the engine that it got into."""

PART_OF = "torch_tensorrt.part_of"
"""In a node's metadata: the name of the operator that was decomposed into it for an engine."""

WHY_IN_PYTORCH = "torch_tensorrt.why_in_pytorch"
"""Why the node is in no engine."""

WHY_IN_PYTORCH_OF = "torch_tensorrt.why_in_pytorch_of"
"""The operator that ``WHY_IN_PYTORCH`` is true of: the node is one of its parts, if it isn't the node's own."""

LEFT_TO_OTHERS = "torch_tensorrt.left_to_others"
"""Why the node is to be in no engine of the partitioner that compiles the program."""

OWNER = "torch_tensorrt.partitioner"
"""The ``id`` of the one partitioner that is to claim the engine node."""

AS_FLOAT32 = "compile with truncate_double=True"
"""What has TensorRT compute in float32 what is in float64, in the words of the reasons."""

IN_FLOAT32 = "TensorRT computes in float32 what is in float64 here, as truncate_double=True asks for"
"""Why a cast of an engine's input or output is there, which compilation has inserted."""


def set_note(node: Node, key: str, value: Any) -> None:
    """Note ``value`` at ``node``, where decompositions and exporters keep it, and at no copy of it."""
    node.meta["custom"] = {**(node.meta.get("custom") or {}), key: value}


def note_of(node: Node, key: str) -> Any:
    """Return what is noted at ``node`` under ``key``, None without."""
    return (node.meta.get("custom") or {}).get(key)
