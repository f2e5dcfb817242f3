"""Record, per node, the reason that it was left to PyTorch, where exporters keep it."""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import GraphModule, Node
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
    IN_PYTORCH,
    LEFT_TO_OTHERS,
    WHY_IN_PYTORCH,
    note_of,
    set_note,
)


def with_reasons(module: GraphModule, settings: CompilationSettings) -> GraphModule:
    """Note at the nodes of ``module``, compiled, that are in no engine why they aren't; return it.

    Args:
        module: Its engines are its ``_run_on_acc`` modules.
        settings: Those that it was compiled with, routed.
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
            set_note(node, WHY_IN_PYTORCH, why)
    return module


def _reason(node: Node, settings: CompilationSettings) -> str:
    name = ConverterRegistry.qualified_name_or_str(node.target)
    if not {node.target, name}.isdisjoint(settings.torch_executed_ops):
        return "torch_executed_ops"
    if others := note_of(node, LEFT_TO_OTHERS):
        return str(others)
    if isinstance(found := node.meta.get(IN_PYTORCH), str):
        return found
    if not any(node.target in registry for registry in DYNAMO_CONVERTERS.registries):
        return "no converter"
    if node not in DYNAMO_CONVERTERS:
        return "refused by a converter's validator"
    return "too few for an engine (min_block_size)"


def operators(module: GraphModule) -> Iterator[Node]:
    """Yield the nodes of ``module`` that call operators; taking a tuple apart is none."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            yield node
