"""How many operators of a program run where, and why some of them aren't in TensorRT."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator

from executorch.exir.delegate import executorch_call_delegate
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch_tensorrt.dynamo._allocator_routing import (
    output_allocator_nodes,
)
from torch_tensorrt.dynamo._compiler import _output_allocator_ops
from torch_tensorrt.dynamo.conversion import DYNAMO_CONVERTERS

CPU = "CPU kernels"


def per_backend(partitions: GraphModule, edge: ExportedProgram) -> Counter[str]:
    """Count operators by where they run: ATen's in TensorRT, edge operators elsewhere.

    Args:
        partitions: What ``torch_tensorrt.compile(..., dryrun=True)`` returned, because an engine
            no longer tells the operators that it was built from.
        edge: The same program, compiled and lowered.
    """
    counts = Counter({"TensorRT": 0, CPU: 0})
    for name, part in partitions.named_children():
        if _is_engine(name):
            counts["TensorRT"] += len(list(_operators(part)))
    for node in edge.graph.nodes:
        if node.target is executorch_call_delegate:
            delegate = getattr(edge.graph_module, node.args[0].target)
            backend = delegate.backend_id.removesuffix("Backend").upper()
            if backend != "TENSORRT":
                inside = delegate.original_module.graph_module
                counts[backend] += len(list(_operators(inside)))
    counts[CPU] += len(list(_operators(edge.graph_module)))
    return counts


def left_out(partitions: GraphModule, routing: str) -> Counter[tuple[str, str]]:
    """Count the operators that aren't in TensorRT by name and reason, after such a dry run."""
    routed = _output_allocator_ops() if routing == "target" else set()
    counts: Counter[tuple[str, str]] = Counter()
    for name, part in partitions.named_children():
        if _is_engine(name):
            continue
        allocating = output_allocator_nodes(part)
        for node in _operators(part):
            if node.target in routed or node in allocating:
                reason = "routed: output allocator"
            elif node not in DYNAMO_CONVERTERS:
                reason = "no converter"
            else:
                reason = "too few for an engine (min_block_size)"
            counts[str(node.target), reason] += 1
    return counts


def _is_engine(name: str) -> bool:
    return name.startswith("_run_on_acc")


def _operators(module: GraphModule) -> Iterator[Node]:
    """Yield the nodes that compute tensors: no delegates, and no arithmetic on sizes."""
    others = (operator.getitem, executorch_call_delegate)
    for node in module.graph.nodes:
        tensors = isinstance(node.meta.get("val"), (Tensor, tuple, list))
        if node.op == "call_function" and tensors and node.target not in others:
            yield node
