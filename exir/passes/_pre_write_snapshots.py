"""Clone values that are read after their storage was overwritten in place."""

from __future__ import annotations

from executorch.exir.dialects._ops import ops
from executorch.exir.passes._aliases import VIEW_COPY
from executorch.exir.passes._mutations import written_args
from executorch.exir.passes.devices.nodes import operator_name
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Graph, Node

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)


def snapshot_before_writes(program: ExportedProgram) -> None:
    """Copy the values of an edge program that upstream's next steps would overwrite.

    Runs before ``insert_write_back_for_buffers_pass``, which writes a method's new values one after the
    other: a second buffer's new value, or an output, that is the first buffer's old value would be the
    new one. A buffer whose new value is another buffer would be skipped, as if written in place. And elided
    views of values that ``reinplace_pass`` had written in place would show the new value.
    """
    graph, signature = program.graph, program.graph_signature
    for view, value in _written_since(graph).items():
        view.replace_input_with(value, copy_before(value, view))
    output = graph.output_node()
    mutated = {
        output_spec.target
        for output_spec in signature.output_specs
        if output_spec.kind in _MUTATIONS
    }
    returned = list(output.args[0])
    for index, spec in enumerate(signature.output_specs):
        value = returned[index]
        if not isinstance(value, Node):
            continue
        shown = _shown(value)
        name = signature.inputs_to_buffers.get(shown.name, shown.name)
        if shown.op != "placeholder" or name == spec.target:
            continue
        is_view = _shown(value, through_views=False) is not shown
        if spec.kind in _MUTATIONS:
            left_out = not is_view and shown.name in signature.inputs_to_buffers
            wanted = left_out or name in mutated
        else:
            wanted = not is_view and name in mutated  # a returned view is a copy
        if wanted:
            returned[index] = copy_before(value, output)
            spec.arg.name = returned[index].name
    output.args = (tuple(returned),)
    graph.lint()
    program.graph_module.recompile()


def copy_before(value: Node, place: Node) -> Node:
    """Insert a copy of a value before a node, and return it."""
    clone = ops.edge.dim_order_ops._clone_dim_order.default
    with value.graph.inserting_before(place):
        copy = value.graph.call_function(clone, (value,))
    meta_keys = ("val", "tensor_meta", "stack_trace")
    copy.meta = {key: value.meta[key] for key in meta_keys if key in value.meta}
    return copy


def _written_since(graph: Graph) -> dict[Node, Node]:
    """Return the views that are read after an operator wrote to their base, with that base."""
    first_views: dict[Node, tuple[Node, Node]] = {}
    taken_at: dict[Node, int] = {}
    written: dict[Node, int] = {}
    stale_views: dict[Node, Node] = {}
    for index, node in enumerate(graph.nodes):
        taken_at[node] = index
        for value in node.all_input_nodes:
            shown, view = first_views.get(value, (value, value))
            if view is not shown and taken_at[view] < written.get(shown, 0):
                stale_views[view] = shown
        if operator_name(node) == VIEW_COPY:
            base = node.all_input_nodes[0]
            first_views[node] = first_views.get(base, (base, node))
        for value in written_args(node):
            written[first_views.get(value, (value, value))[0]] = index
    return stale_views


def _shown(value: Node, through_views: bool = True) -> Node:
    """Return the base that a value was written to in place, or is a view of."""
    while written_args(value) or (through_views and operator_name(value) == VIEW_COPY):
        value = value.all_input_nodes[0]
    return value
