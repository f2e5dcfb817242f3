"""Fold constant expressions of integers and booleans at export: masks, positions."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.transforms.utils import delete_constant_placeholder
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from executorch.exir.program.operators.calls import operator_of, replace_by_constant
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

#: Bytes of a value that is computed at export: masks, no weights.
_LARGEST = 1 << 20
_TYPES = (torch.bool, torch.int32, torch.int64)


def constants_of(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return a program's constants, by placeholder: parameters, tensors, and buffers that nothing writes to."""
    return {
        node: tensor
        for node, tensor in get_constant_placeholder_dict(program).items()
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor)
    }


def fold_constants(program: ExportedProgram) -> None:
    """Fold the values of ``program``, in edge dialect, that depend on no input or weight, of at most 1 MiB each.

    Of floating-point constants only scalars are folded: XNNPACK matches weights and their dequantization as they are.
    """
    values = {
        node: tensor
        for node, tensor in constants_of(program).items()
        if tensor.numel() == 1 or (tensor.dtype in _TYPES and _is_small(tensor))
    }
    roots = {node for node in values if node.users}
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    folded = []
    for node in calls:
        if not _is_static(node):
            continue
        if operator_of(node) is torch.ops.aten.full_like.default:
            value = node.meta["val"]
            number: Any = node.args[1]
            values[node] = torch.full(value.shape, number, dtype=value.dtype)
        elif all(input_node in values for input_node in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = operator_of(node)(*args, **kwargs)
        else:
            continue
        folded.append(node)
    for node in folded:
        if any(user not in values for user in node.users):
            replace_by_constant(program, node, values[node])
    for node in reversed(folded):
        if not node.users:
            program.graph.erase_node(node)
    remove_unread(program, roots)


def remove_unread(program: ExportedProgram, constants: set[Node]) -> None:
    """Remove those of a program's constants that nothing reads any more, if they are there."""
    for node in constants_of(program):
        if node in constants and not node.users:
            delete_constant_placeholder(program, node)


def _is_static(node: Node) -> bool:
    """Whether a call is deterministic, and returns a tensor of a static size that may be stored."""
    operator, value = operator_of(node), node.meta.get("val")
    return (
        isinstance(operator, OpOverload)
        and operator.namespace in ("aten", "dim_order_ops")
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and "empty" not in operator.name()  # type: ignore[no-untyped-call]
        and isinstance(value, torch.Tensor)
        and all(isinstance(size, int) for size in value.shape)
        and _is_small(value)
        and all(user.op != "output" for user in node.users)
        and not (value.is_floating_point() and is_weight(node))
    )


def is_weight(node: Node) -> bool:
    """Whether an operator reads a value that XNNPACK's passes would change in place, if it were a constant, for all that read it."""
    return any(operator_of(user) in _WEIGHTED for user in node.users)


#: Operators whose weights and biases XNNPACK's passes reshape, fuse and transpose.
_WEIGHTED = (
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten.linear.default,
    torch.ops.aten.mm.default,
    torch.ops.aten.prelu.default,
    torch.ops.aten._native_batch_norm_legit_no_training.default,
)


def _is_small(value: torch.Tensor) -> bool:
    return value.numel() * value.element_size() <= _LARGEST
