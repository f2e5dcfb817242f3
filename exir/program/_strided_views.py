"""Rewrite ``as_strided`` of permuted views, whose strides don't hold in an edge program.

There ``permute_copy`` returns contiguous values, and the strides of the permuted view would silently read other elements.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from executorch.exir.program._transforms import of_each_program, with_calls_replaced
from executorch.exir.program.operators.calls import module_of
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

logger = logging.getLogger(__name__)

_aten = torch.ops.aten
_AS_STRIDED = (
    _aten.as_strided.default,
    _aten.as_strided_copy.default,
    _aten.as_strided_.default,
)


@of_each_program
def with_contiguous_storage(program: ExportedProgram) -> ExportedProgram:
    """Return a program, or each of a dict's, whose ``as_strided`` reads what owns the memory, in the order that it has there.

    Where that is in no order (of a slice that the program hasn't whole), a warning says so.

    Args:
        program: In ATen, as ``torch.export.export`` returned it. It is left as it is.
    """
    return with_calls_replaced(program, _is_misread, _read_storage)


def _is_misread(node: Node) -> bool:
    """Whether a node is an ``as_strided`` of a value that isn't what its memory holds from the beginning on."""
    if node.target not in _AS_STRIDED:
        return False
    source = node.all_input_nodes[0]
    return _owner(source) is not source or _order(_value(source)) != [
        *range(_value(source).ndim)
    ]


def _read_storage(node: Node) -> None:
    source = node.all_input_nodes[0]
    owner = _owner(source)
    value, order = _value(owner), _order(_value(owner))
    if order is None:
        logger.warning(
            "%s (node %s) of %s reads memory of a value that isn't whole in it, and programs of ExecuTorch hold values by themselves: "
            "values may differ from eager's; write it by slices, or by indices",
            *(node.target, node, module_of(node)),
        )
        return
    _, sizes, strides, *offsets = node.args
    offset: Any = offsets[0] if offsets else node.kwargs.get("storage_offset")
    if offset is None:
        offset = _value(source).storage_offset()
    if not isinstance(offset, int):
        return  # as a number of a graph it would need a node
    read = owner
    if order != [*range(value.ndim)]:
        with node.graph.inserting_before(node):
            read = node.graph.call_function(_aten.permute.default, (owner, order))
        read.meta = {**node.meta, "val": value.permute(order)}
    node.args = (read, sizes, strides, offset - value.storage_offset())
    node.kwargs = {}


def _owner(node: Node) -> Node:
    """Return the node of which ``node`` is a view, through any number of views."""
    while (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and node.target.is_view
        and isinstance(node.args[0], Node)
    ):
        node = node.args[0]
    return node


def _order(value: Tensor) -> list[int] | None:
    """Return the dimensions of a value in the order of its memory; None if that isn't dense."""
    hints = [_hint(stride) for stride in value.stride()]
    order = sorted(range(value.ndim), key=lambda dim: -hints[dim])
    expected: Any = 1
    for dim in reversed(order):
        size, stride = value.shape[dim], value.stride(dim)
        if not any(map(statically_known_true, (size == 1, stride == expected))):
            return None
        expected = expected * size
    return order


def _hint(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else int(size.node.hint or 1)


def _value(node: Node) -> Any:
    return node.meta["val"]
