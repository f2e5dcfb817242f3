"""Keep recurrent layers whole where TensorRT runs them as loops.

Decompositions go by operator, so an operator is decomposed, as before, if a converter doesn't support all its layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)
from torch_tensorrt.dynamo.conversion._recurrent_converters import CONVERTERS
from torch_tensorrt.dynamo.fallback.decompositions import is_supported

#: Their operators by the names that settings have for them.
_NAMES = frozenset(map(ConverterRegistry.qualified_name_or_str, CONVERTERS))

#: Higher-order operators whose graphs ``run_decompositions`` inlines.
_INLINED = (torch.ops.higher_order.wrap_with_set_grad_enabled,)


def without_layers(
    table: Mapping[Any, Any], program: ExportedProgram, settings: CompilationSettings
) -> Mapping[Any, Any]:
    """Return decompositions without those of the recurrent layers that engines have whole.

    Args:
        table: Decompositions by operator.
        program: The program to decompose.
        settings: Without ``target_executorch`` the table is returned as it is.
    """
    layers = dict(_layers(program.graph_module)) if settings.target_executorch else {}
    if not layers:
        return table
    DYNAMO_CONVERTERS.set_compilation_settings(settings)
    decomposed = {
        layer.target
        for layer, in_an_engine in layers.items()
        if not (in_an_engine and is_supported(layer, settings))
    }
    whole = CONVERTERS.keys() - decomposed
    return {
        operator: function
        for operator, function in table.items()
        if operator not in whole
    }


def with_layers_alone(partitioner: Any) -> Any:
    """Allow a partitioner engines of a single recurrent layer, whatever ``min_block_size`` is; return it."""
    others = partitioner.allowed_single_node_partition_ops or ()
    partitioner.allowed_single_node_partition_ops = {*others, *_NAMES}
    return partitioner


def count_of_parts(graph: Graph, settings: CompilationSettings) -> int:
    """Return how many extra operators a graph's recurrent layers count for: an engine's minimum each."""
    layers = (node for node in graph.nodes if node.target in CONVERTERS)
    return sum(settings.min_block_size for n in layers if is_supported(n, settings))


def _layers(
    module: GraphModule, in_an_engine: bool = True
) -> Iterator[tuple[Node, bool]]:
    """Yield the recurrent layers of a graph and its submodules, and whether engines may have them.

    Branches and bodies of loops never are.
    """
    for node in module.graph.nodes:
        if node.target in CONVERTERS:
            yield node, in_an_engine
        child = getattr(module, str(node.target), None) if node.op == "get_attr" else 0
        if isinstance(child, GraphModule):
            inlined = all(user.target in _INLINED for user in node.users)
            yield from _layers(child, in_an_engine and inlined)
