"""What a graph's operators write in place."""

from __future__ import annotations

from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node


def written_args(node: Node) -> list[Node]:
    """Return the arguments that an operator writes in place."""
    formals = getattr(getattr(node.target, "_schema", None), "arguments", ())
    names = (formal.name for formal in formals)
    args = dict(zip(names, node.args, strict=False)) | node.kwargs
    return [
        arg
        for formal in formals
        if formal.alias_info is not None and formal.alias_info.is_write
        for arg in [args.get(formal.name)]
        if isinstance(arg, Node)
    ]


def written_buffers(program: ExportedProgram) -> set[str]:
    """Return the buffers that a program writes, by name: its signature lists them once it is functionalized, not before."""
    signature = program.graph_signature
    inputs = (
        _base_of(arg).name for node in program.graph.nodes for arg in written_args(node)
    )
    buffers = signature.inputs_to_buffers
    in_place = {buffers[name] for name in inputs if name in buffers}
    return in_place.union(signature.buffers_to_mutate.values())


def _base_of(node: Node) -> Node:
    """Return the node that a view, or a view of a view, is of; what an operator writes in place is a view of it as well."""
    while isinstance(node.target, OpOverload):
        if node.target.is_view:
            node = node.all_input_nodes[0]
        elif written := written_args(node):
            node = written[0]
        else:
            break
    return node
