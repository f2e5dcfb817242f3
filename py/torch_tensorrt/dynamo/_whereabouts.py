"""Why operators of a compiled program run in PyTorch, for who reports on it once it is lowered.

A program no longer tells why an operator isn't in an engine. So that is noted when the graph is
partitioned, at the nodes, where exporters keep it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

from torch.fx import GraphModule, Node
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._notes import WHY_IN_PYTORCH, set_note
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)


def note_reasons(
    module: GraphModule,
    engines: Mapping[str, GraphModule],
    settings: CompilationSettings,
) -> None:
    """Note at the nodes of a partitioned graph that are in no engine why they aren't."""
    from torch_tensorrt.dynamo._allocator_routing import (
        _output_allocator_ops,
        output_allocator_nodes,
    )

    by_target = settings.executorch_allocator_routing == "target"
    routed = _output_allocator_ops() if by_target else set()
    parts = [module]
    for name, child in module.named_children():
        if name not in engines and isinstance(child, GraphModule):
            parts.append(child)
    for part in parts:
        allocating = set(output_allocator_nodes(part))
        for node in operators(part):
            needs_allocator = settings.target_executorch and (
                node.target in routed or node in allocating
            )
            why = "output allocator" if needs_allocator else _reason(node, settings)
            set_note(node, WHY_IN_PYTORCH, why)


def _reason(node: Node, settings: CompilationSettings) -> str:
    name = ConverterRegistry.qualified_name_or_str(node.target)
    if not {node.target, name}.isdisjoint(settings.torch_executed_ops):
        return "torch_executed_ops"
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
