"""Building an emulated engine: a partition as an ``ExportedProgram``."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Sequence, cast

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.export.passes import move_to_device_pass
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree


def program_of(
    partition: GraphModule, output_dtypes: Sequence[torch.dtype]
) -> ExportedProgram:
    """Return ``partition`` as a program on the CPU, its weights lifted to constants.

    It isn't traced again: symbolic shapes, and what lowering and partitioning did, stay as they
    are. Metadata other than ``val`` is dropped and there are no example inputs, so that equal
    partitions give equal programs in every process.

    Args:
        partition: Every node carries its fake tensor or symbolic int in ``val``.
        output_dtypes: Those of the engine's outputs. Where the partition has another dtype, or
            returns a symbolic int, the program casts.
    """
    graph, constants = _lifted(partition)
    _cast_outputs(graph, output_dtypes)
    signature = _signature(graph, list(constants))
    program = ExportedProgram(
        root=torch.nn.Module(),
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints=_ranges(graph),
        module_call_graph=[_call_entry(signature)],
        constants={**constants},
    )
    return move_to_device_pass(program, "cpu")


def _lifted(partition: GraphModule) -> tuple[Graph, dict[str, torch.Tensor]]:
    """Return a copy of the graph whose weights are placeholders, before all others, and those."""
    values = [node.meta["val"] for node in partition.graph.find_nodes(op="placeholder")]
    mode = detect_fake_mode(values) or FakeTensorMode()
    graph = Graph()
    copies: dict[Node, Node] = {}
    constants: dict[str, torch.Tensor] = {}
    lifted: dict[str, Node] = {}
    for node in partition.graph.find_nodes(op="get_attr"):
        path = str(node.target)
        if path not in lifted:
            weight = attrgetter(path)(partition).detach()
            name = f"_weight_{len(constants)}"
            constants[name] = weight
            lifted[path] = graph.placeholder(name)
            lifted[path].meta["val"] = mode.from_tensor(weight, static_shapes=True)
        copies[node] = lifted[path]
    for node in partition.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    return graph, constants


def _cast_outputs(graph: Graph, dtypes: Sequence[torch.dtype]) -> None:
    output = graph.output_node()
    values = (
        output.args[0] if isinstance(output.args[0], (tuple, list)) else output.args
    )
    with graph.inserting_before(output):
        cast = [
            _cast(graph, value, dtype)
            for value, dtype in zip(values, dtypes, strict=True)
        ]
    output.args = (tuple(cast),)


def _cast(graph: Graph, value: Node, dtype: torch.dtype) -> Node:
    held = value.meta["val"]
    if not isinstance(held, torch.Tensor):
        target = torch.ops.aten.scalar_tensor.default
    elif held.dtype != dtype:
        target = torch.ops.aten._to_copy.default
    else:
        return value
    node = graph.call_function(target, (value,), {"dtype": dtype})
    mode = (
        detect_fake_mode([n.meta.get("val") for n in graph.nodes]) or FakeTensorMode()
    )
    with mode:
        node.meta["val"] = target(held, dtype=dtype)
    return node


def _signature(graph: Graph, constants: list[str]) -> ExportGraphSignature:
    placeholders = graph.find_nodes(op="placeholder")
    lifted, given = placeholders[: len(constants)], placeholders[len(constants) :]
    inputs = [
        InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), target=name)
        for node, name in zip(lifted, constants, strict=True)
    ]
    inputs += [InputSpec(InputKind.USER_INPUT, _argument(node), None) for node in given]
    returned = cast("tuple[Node, ...]", graph.output_node().args[0])
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, _argument(node), None) for node in returned
    ]
    return ExportGraphSignature(inputs, outputs)


def _argument(node: Node) -> ArgumentSpec:
    tensor = isinstance(node.meta["val"], torch.Tensor)
    return TensorArgument(node.name) if tensor else SymIntArgument(node.name)


def _ranges(graph: Graph) -> dict[Any, Any]:
    """Return the range of every symbol in the graph's shapes, as its shape environment has it."""
    ranges: dict[Any, Any] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.var_to_range
                symbols = size.node.expr.free_symbols
                ranges |= {
                    symbol: known[symbol] for symbol in symbols if symbol in known
                }
    return ranges


def _call_entry(signature: ExportGraphSignature) -> ModuleCallEntry:
    inputs = tuple(
        0 for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT
    )
    outputs = tuple(0 for _ in signature.output_specs)
    return ModuleCallEntry(
        "",
        ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=pytree.tree_structure((inputs, {})),
            out_spec=pytree.tree_structure(outputs),
        ),
    )
