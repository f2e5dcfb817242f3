"""Record, per node, the reason that it was left to PyTorch, where exporters keep it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)
from torch_tensorrt.dynamo.executorch.allocator_routing import (
    _output_allocator_ops,
    output_allocator_nodes,
)
from torch_tensorrt.dynamo.fallback.metadata_keys import (
    AS_FLOAT32,
    IN_FLOAT32,
    IN_PYTORCH,
    LEFT_TO_OTHERS,
    WHY_IN_PYTORCH,
    WHY_IN_PYTORCH_OF,
    note_of,
    set_note,
)

TOO_FEW = "too few for an engine (min_block_size)"


def with_reasons(module: GraphModule, settings: CompilationSettings) -> GraphModule:
    """Note at the nodes of ``module``, compiled, that are in no engine why they aren't; return it.

    Args:
        module: Its engines are its ``_run_on_acc`` modules.
        settings: Settings that it was compiled with, after routing.
    """
    routed = _output_allocator_ops() & set(settings.torch_executed_ops)
    parts = [module]
    for name, child in module.named_children():
        if "_run_on_acc" not in name and isinstance(child, GraphModule):
            parts.append(child)
    for part in parts:
        allocating = set(output_allocator_nodes(part))
        for node in operators(part):
            needs_allocator = settings.target_executorch and (
                node.target in routed or node in allocating
            )
            why = "output allocator" if needs_allocator else _reason(node, settings)
            note_reason(node, why, str(node.target))
    return module


def note_reason(node: Node, why: str, operator_name: str) -> None:
    """Note at ``node``, and at whatever it is decomposed into, why the operator is in no engine."""
    set_note(node, WHY_IN_PYTORCH, why)
    set_note(node, WHY_IN_PYTORCH_OF, operator_name)


def origin(node: Node) -> tuple[str, str]:
    """Return the name and the operator of the node of the exported program that ``node`` was made from."""
    source: Any = node
    sources = node.meta.get("from_node")
    while sources:
        source = sources[0]
        sources = source.from_node
    return str(source.name), str(source.target)


def _reason(node: Node, settings: CompilationSettings) -> str:
    name = ConverterRegistry.qualified_name_or_str(node.target)
    if not {node.target, name}.isdisjoint(settings.torch_executed_ops):
        return "torch_executed_ops"
    if others := note_of(node, LEFT_TO_OTHERS):
        return str(others)
    if isinstance(reason := node.meta.get(IN_PYTORCH), str):
        return reason
    if settings.truncate_double and "val" not in node.meta:
        return IN_FLOAT32  # a node of repair_double_inputs, which nothing has traced
    if not any(node.target in registry for registry in DYNAMO_CONVERTERS.registries):
        return "no converter"
    if node not in DYNAMO_CONVERTERS:
        if _has_doubles(node):
            suggestion = "" if settings.truncate_double else f"; {AS_FLOAT32}"
            return f"TensorRT: it is in torch.float64, which TensorRT doesn't have{suggestion}"
        return "refused by a converter's validator"
    return TOO_FEW


def _has_doubles(node: Node) -> bool:
    """Whether an operator takes or returns float64."""
    values = [involved.meta.get("val") for involved in (node, *node.all_input_nodes)]
    return any(
        isinstance(value, torch.Tensor) and value.dtype == torch.float64
        for value in tree_leaves(values)
    )


def operators(module: GraphModule) -> Iterator[Node]:
    """Yield the nodes of ``module`` that call operators; taking a tuple apart is none."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            yield node
