"""Build an emulated engine: a partition as an ``ExportedProgram``."""

from __future__ import annotations

from typing import Sequence

import torch
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from torchtrt_executorch.lifting import (
    copied_graph,
    lifted_program,
    mode_of,
    normalize_values,
)


def program_of(
    partition: GraphModule,
    output_dtypes: Sequence[torch.dtype],
    truncate_double: bool = False,
) -> ExportedProgram:
    """Return ``partition`` as a program on the CPU, returning a tuple.

    Metadata other than ``val`` is dropped and there are no example inputs, so that equal
    partitions give equal programs in every process. ``partition`` is left as it is.

    Args:
        partition: Every node carries its fake tensor or symbolic int in ``val``.
        output_dtypes: Dtypes of the engine's outputs. Where the partition has another dtype, or
            returns a symbolic int, the program casts.
        truncate_double: Take and return float32 in the place of float64, as engines do then.
    """
    graph, copies = copied_graph(partition.graph)
    for node in copies.values():
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    normalize_values(graph)
    if truncate_double:
        single = {torch.float64: torch.float32}
        output_dtypes = [single.get(dtype, dtype) for dtype in output_dtypes]
        _take_singles(graph)
    _cast_outputs(graph, output_dtypes)
    program = lifted_program(GraphModule(partition, graph))
    return move_to_device_pass(program, "cpu")


def _take_singles(graph: Graph) -> None:
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            readers = list(node.users)
            node.meta["val"] = value.to(torch.float32)
            with graph.inserting_before(readers[0] if readers else graph.output_node()):
                double = _cast(graph, node, torch.float64)
            for reader in readers:
                reader.replace_input_with(node, double)


def _cast_outputs(graph: Graph, dtypes: Sequence[torch.dtype]) -> None:
    output = graph.output_node()
    values = pytree.tree_leaves(output.args[0])
    with graph.inserting_before(output):
        cast = [
            _cast(graph, value, dtype)
            for value, dtype in zip(values, dtypes, strict=True)
        ]
    output.args = (tuple(cast),)


def _cast(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    example = value.meta["val"]
    if not isinstance(example, torch.Tensor):
        target = torch.ops.aten.scalar_tensor.default
    elif example.dtype != dtype:
        target = torch.ops.aten._to_copy.default
    else:
        return value
    node = graph.call_function(target, (value,), {"dtype": dtype})
    with mode_of(graph):
        node.meta["val"] = target(example, dtype=dtype)
    return node
