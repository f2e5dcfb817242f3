"""Make a delegate's constants contiguous, as ``ChannelsLastTaggedReshapePass`` requires of weights.

A model's ``to(memory_format=torch.channels_last)`` makes weights of 4 dimensions channels-last.
"""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops
from torch._dispatch.python import enable_python_dispatcher
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

_COPY = exir_ops.edge.dim_order_ops._to_dim_order_copy.default


def make_constants_contiguous(program: ExportedProgram) -> None:
    """Replace channels-last constants of the delegate's ``program`` by contiguous copies; its outputs keep their layouts.

    A convolution with a channels-last weight returns channels-last values, and memory is planned for that layout. Its
    results are copied to it, since with a contiguous weight they have another.

    Args:
        program: Of one delegate. Its tensors may be shared with other programs, and aren't changed.
    """
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    changed = False
    for spec in program.graph_signature.input_specs:
        for tensors in (program._state_dict, program._constants):
            tensor = tensors.get(spec.target or "")
            if not isinstance(tensor, torch.Tensor) or not _is_channels_last(tensor):
                continue
            dense = tensor.detach().contiguous()
            if isinstance(tensor, torch.nn.Parameter):
                dense = torch.nn.Parameter(dense, requires_grad=False)
            tensors[spec.target] = dense
            node = nodes[spec.arg.name]
            node.meta["val"] = node.meta["val"].contiguous()
            changed = True
    if changed:
        _keep_layouts_of_outputs(program)
        program.graph_module.recompile()


def _keep_layouts_of_outputs(program: ExportedProgram) -> None:
    """Copy outputs to channels-last where they are no longer, and have nodes the values that they return now."""
    graph, specs = program.graph, program.graph_signature.output_specs
    output = graph.output_node()
    (results,) = output.args
    wanted = {node: node.meta["val"] for node in results}  # type: ignore[union-attr]
    with enable_python_dispatcher():  # for symbolic sizes
        for node in [call for call in graph.nodes if call.op == "call_function"]:
            args, kwargs = map_arg((node.args, node.kwargs), _value)
            node.meta["val"] = node.target(*args, **kwargs)
    for node, value in wanted.items():
        if _is_channels_last(value) and not _is_channels_last(_value(node)):
            with graph.inserting_before(output):
                copy = graph.call_function(
                    _COPY, (node,), {"dim_order": [0, 2, 3, 1], "dtype": value.dtype}
                )
            copy.meta = {**node.meta, "val": value}
            output.replace_input_with(node, copy)
            for spec in specs:
                if spec.arg.name == node.name:
                    spec.arg.name = copy.name


def _is_channels_last(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.ndim == 4
        and not value.is_contiguous()
        and value.is_contiguous(memory_format=torch.channels_last)
    )


def _value(node: Node) -> Any:
    return node.meta["val"]
