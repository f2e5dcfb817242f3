"""Copy graphs, keeping node names and sharing fake tensors."""

from __future__ import annotations

from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node


def copied_graph(
    graph: Graph,
    into: Graph | None = None,
    replacements: dict[Node, Node] | None = None,
) -> tuple[Graph, dict[Node, Node]]:
    """Return a copy of ``graph``, and of each node its copy, under the same name.

    Args:
        graph: Is left as it is.
        into: A graph to append the copies to; by default a new one.
        replacements: Nodes that aren't copied, with what of ``into`` stands for them.
    """
    copy = Graph() if into is None else into
    copies = dict(replacements or {})
    names = {node.name for node in copy.nodes}
    for node in graph.nodes:
        if node in copies:
            continue
        copies[node] = copy.node_copy(node, copies.__getitem__)
        # A copy of an input called "input" would be renamed, and signatures go by names.
        if node.name not in names:
            copies[node].name = node.name
        names.add(copies[node].name)
    return copy, copies


def copied_module(module: GraphModule) -> GraphModule:
    """Return ``module`` with a copy of its graph, sharing its attributes."""
    graph, _ = copied_graph(module.graph)
    graph.set_codegen(module.graph._codegen)  # its input and output trees
    copy = GraphModule(module, graph)
    copy.meta.update(module.meta)
    return copy


def with_graph_of_its_own(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with a copy of its graph, for passes that change it in place."""
    graph, _ = copied_graph(program.graph)
    return program._update(
        GraphModule(program.graph_module, graph), program.graph_signature
    )
