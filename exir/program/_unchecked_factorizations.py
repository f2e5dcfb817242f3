"""Invert and factorize without a check of the result, which no program of ExecuTorch can raise by.

PyTorch decomposes ``linalg_inv`` to ``linalg_inv_ex`` and ``_linalg_check_errors``, which is an effect that a program has no place for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from executorch.exir.program._transforms import of_each_program, with_calls_replaced
from torch.export import ExportedProgram
from torch.fx import Node

_aten = torch.ops.aten
_UNCHECKED = {
    _aten.inverse.default: _aten.linalg_inv_ex.default,
    _aten.linalg_inv.default: _aten.linalg_inv_ex.default,
    _aten.linalg_cholesky.default: _aten.linalg_cholesky_ex.default,
    _aten.linalg_solve.default: _aten._linalg_solve_ex.default,
}


@of_each_program
def without_error_checks(program: ExportedProgram) -> ExportedProgram:
    """Return a program, or each of a dict's, with operators that don't check what they return, in the place of those that do.

    Args:
        program: In ATen, as ``torch.export.export`` returned it. It is left as it is.
    """
    return with_calls_replaced(
        program, lambda node: node.target in _UNCHECKED, _replace
    )


def _replace(node: Node) -> None:
    """Have a node be the first result of the operator that checks nothing; it keeps its name, by which an output is known."""
    target = _UNCHECKED[node.target]  # type: ignore[index]
    positional = [
        argument for argument in target._schema.arguments if not argument.kwarg_only
    ]
    count = len(positional)
    args, options = node.args[:count], {**node.kwargs}
    if len(node.args) > count:  # given by position here, by name alone there
        options["left" if count > 1 else "upper"] = node.args[count]
    with node.graph.inserting_before(node):
        results = node.graph.call_function(target, args, options)
    values: list[Any] = [input_node.meta["val"] for input_node in node.all_input_nodes]
    results.meta = {**node.meta, "val": target(*values, **options)}
    node.target = operator.getitem
    node.args, node.kwargs = (results, 0), {}
