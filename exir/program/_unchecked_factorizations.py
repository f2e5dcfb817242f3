"""Replace inverse, solve and Cholesky by their variants without an error check.

PyTorch decomposes ``linalg_inv`` to ``linalg_inv_ex`` and ``_linalg_check_errors``, a side effect that an ExecuTorch program
can't represent.
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
    """Return a program, or each program of a dict, with the operators that check for errors replaced by their unchecked variants.

    Args:
        program: In ATen, as ``torch.export.export`` returned it. It is left as it is.
    """
    return with_calls_replaced(
        program, lambda node: node.target in _UNCHECKED, _replace
    )


def _replace(node: Node) -> None:
    """Replace a node by the first result of the unchecked variant; it keeps its name, by which outputs are found."""
    target = _UNCHECKED[node.target]  # type: ignore[index]
    positional = [
        argument for argument in target._schema.arguments if not argument.kwarg_only
    ]
    count = len(positional)
    args, options = node.args[:count], {**node.kwargs}
    if len(node.args) > count:  # positional here, keyword-only there
        options["left" if count > 1 else "upper"] = node.args[count]
    with node.graph.inserting_before(node):
        results = node.graph.call_function(target, args, options)
    values: list[Any] = [input_node.meta["val"] for input_node in node.all_input_nodes]
    results.meta = {**node.meta, "val": target(*values, **options)}
    node.target = operator.getitem
    node.args, node.kwargs = (results, 0), {}
