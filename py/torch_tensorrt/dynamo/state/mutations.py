"""Mutations of a program: the buffers and inputs that it writes in place.

A program says it in one of three ways. Traced for training it has operators that write, some of
them inside the regions that ``no_grad`` and ``autocast`` leave in its graph. Made functional it
declares the new values in its signature. A compiled module copies them back at its end.
"""

from __future__ import annotations

from typing import Any, Iterator

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch_tensorrt.dynamo.graphs.copies import with_graph_of_its_own
from torch_tensorrt.dynamo.graphs.strides import let_views_copy

_DECLARED = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_COPY = torch.ops.aten.copy_.default


def made_functional(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with all that it writes declared in its signature.

    One that writes nothing is returned itself; else it is traced again, which also dissolves the
    regions of ``no_grad`` and ``autocast``.
    """
    if not writes_in_place(program):
        return program
    traced = program.run_decompositions({})
    let_views_copy(traced.graph)
    return traced


def writes_in_place(program: ExportedProgram) -> bool:
    """Whether ``program`` has operators that write, or may."""
    return any(map(_may_write, _nodes(program.graph_module)))


def declared_writes(program: ExportedProgram) -> list[OutputSpec]:
    """Return the outputs of ``program`` that are new values of buffers and inputs."""
    specs = program.graph_signature.output_specs
    return [spec for spec in specs if spec.kind in _DECLARED]


def buffers_written_back(module: GraphModule) -> list[str]:
    """Return the paths of the buffers that a compiled module copies new values to."""
    return [
        str(written.target)
        for written, _ in _copies_back(module.graph)
        if written.op == "get_attr"
    ]


def take_writes(graph: Graph) -> list[Node]:
    """Return the inputs that ``graph`` copies back to, and make the values its first outputs.

    That is how a program without side effects says that it writes to a buffer, or to an input.
    """
    copies = [pair for pair in _copies_back(graph) if pair[0].op == "placeholder"]
    output = graph.output_node()
    values = [node.args[1] for _, node in copies]
    for _, node in copies:
        graph.erase_node(node)
    output.args = ((*values, *pytree.tree_leaves(output.args[0])),)
    return [written for written, _ in copies]


def write_back(graph: Graph, state: list[Node]) -> None:
    """Copy the last outputs of ``graph`` into ``state``, after everything else has read it.

    Args:
        graph: Returns, after its own outputs, a new value for each of ``state``.
        state: Placeholders and attributes, tensors.
    """
    output = graph.output_node()
    state_nodes = set(state)
    with graph.inserting_before(output):
        values = [
            _copied(graph, value) if value in state_nodes else value
            for value in pytree.tree_leaves(output.args[0])
        ]
        returned = values[: len(values) - len(state)]
        for node, value in zip(state, values[len(returned) :], strict=True):
            written = graph.call_function(_COPY, (node, value))
            written.meta["val"] = node.meta["val"]
    output.args = (tuple(returned),)


def declared_mutations(
    program: ExportedProgram, source: ExportedProgram | GraphModule
) -> ExportedProgram:
    """Return ``program`` with the buffers that it writes back declared as mutated.

    From torch-tensorrt 2.14 on, engines can write into caches that they alias, and compiled
    modules name buffers to copy back; upstream has a pass that declares both. It changes the
    output node in place, so it is given a graph of its own.
    """
    from torch_tensorrt.dynamo import _exporter

    declare = getattr(_exporter, "_declare_aliased_kv_mutations_on_ep", None)
    if declare is None:
        return program
    holder = source.graph_module if isinstance(source, ExportedProgram) else source
    names = list(holder.meta.get("_copyback_mutation_buffers") or ())
    return declare(with_graph_of_its_own(program), copyback_buffers=names)


def _nodes(module: GraphModule) -> Iterator[Node]:
    """Yield the nodes of a graph, and of the graphs that its higher-order operators hold."""
    for submodule in module.modules():
        if isinstance(submodule, GraphModule):
            yield from submodule.graph.nodes


def _may_write(node: Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    # A higher-order operator's mutations are in its graphs; without graphs they are unknown.
    return isinstance(node.target, torch._ops.HigherOrderOperator) and not any(
        n.op == "get_attr" for n in node.all_input_nodes
    )


def _copies_back(graph: Graph) -> list[tuple[Node, Node]]:
    """Return the targets of copies whose results aren't read, with the copies."""
    copies = graph.find_nodes(op="call_function", target=_COPY)
    return [(node.args[0], node) for node in copies if not node.users]


def _copied(graph: Graph, node: Node) -> Node:
    copied: Any = graph.call_function(torch.ops.aten.clone.default, (node,))
    copied.meta["val"] = node.meta["val"]
    return copied
