"""Resize by the ratio of sizes where PyTorch's CPU kernels do, whatever the scale factor says.

``interpolate`` with ``scale_factor=1.1`` of 6 pixels has 6, and PyTorch's CPU kernels copy them. So does ``nearest``
of two dimensions with twice as many (2.1 of 6), each twice. ExecuTorch's kernels, and PyTorch's decompositions, compute by
the factor.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from executorch.exir.program._transforms import of_each_program
from executorch.exir.program.operators.calls import calls, module_of
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._sympy.numbers import int_oo

logger = logging.getLogger(__name__)

_aten = torch.ops.aten
#: Sizes of a dynamic dimension that are looked at, one by one.
_MOST_SIZES = 1 << 14


class _Resizing(NamedTuple):
    """How an operator's kernel uses scale factors.

    Attributes:
        dims: Spatial dimensions.
        ratios: Of the sizes, for which the scale factor isn't read.
        first: Place of its scale factors: of one list, or of the first of them.
        corners: Place of ``align_corners``, for which no scale factor is read, if it has it.
    """

    dims: int
    ratios: tuple[int, ...]
    first: int
    corners: int | None = None


_KERNELS = {
    _aten.upsample_nearest2d.vec: _Resizing(2, (1, 2), 2),
    _aten.upsample_nearest2d.default: _Resizing(2, (1, 2), 2),
    _aten.upsample_linear1d.vec: _Resizing(1, (1,), 3, 2),
    _aten.upsample_linear1d.default: _Resizing(1, (1,), 3, 2),
    _aten.upsample_bilinear2d.vec: _Resizing(2, (1,), 3, 2),
    _aten.upsample_bilinear2d.default: _Resizing(2, (1,), 3, 2),
    _aten.upsample_trilinear3d.vec: _Resizing(3, (1,), 3, 2),
    _aten.upsample_trilinear3d.default: _Resizing(3, (1,), 3, 2),
}


@of_each_program
def with_ratios_of_sizes(program: ExportedProgram) -> ExportedProgram:
    """Return a program, or each of a dict's, with scale factors that are the ratio of sizes where its kernels take that.

    Where a dynamic size decides, the factor stays, and a warning says for which sizes values differ.

    Args:
        program: In ATen, as ``torch.export.export`` returned it. It is left as it is.
    """
    changes = [*map(_changed_factors, calls(program.graph_module))]
    if not any(changes):
        return program
    module = copy.deepcopy(program.graph_module)
    for node, factors in zip(calls(module), changes, strict=True):
        if factors:
            node.args = (*node.args[: _KERNELS[node.target].first], *factors)  # type: ignore[index]
    module.recompile()
    return program._update(module, program.graph_signature)


def _changed_factors(node: Node) -> list[Any]:
    """Return a call's corrected arguments, from its scale factors on; empty if they are right."""
    kernel = _KERNELS.get(node.target)  # type: ignore[call-overload]
    if kernel is None or node.all_input_nodes[0].meta["val"].device.type != "cpu":
        return []
    if kernel.corners is not None and node.args[kernel.corners]:
        return []
    listed = _lists_factors(node)
    factors: Any = node.args[kernel.first] if listed else node.args[kernel.first :]
    if not factors or not all(isinstance(scale, float) for scale in factors):
        return []
    ratios = [
        _ratio(node, kernel, factor, dim)
        for factor, dim in zip(factors, range(-kernel.dims, 0), strict=True)
    ]
    if ratios == [*factors]:
        return []
    return [ratios] if listed else ratios


def _lists_factors(node: Node) -> bool:
    return bool(node.target._schema.overload_name == "vec")  # type: ignore[union-attr]


def _ratio(node: Node, kernel: _Resizing, factor: float, dim: int) -> float:
    """Return the ratio of sizes that the kernel resizes a dimension by, or the factor itself."""
    size = node.all_input_nodes[0].meta["val"].shape[dim]
    if isinstance(size, int):
        out = node.meta["val"].shape[dim]
        return _same(size, out, factor, kernel.ratios)
    if not _lists_factors(node) or factor in kernel.ratios:
        return factor
    ratios = {
        input_size: _same(input_size, int(input_size * factor), factor, kernel.ratios)
        for input_size in _sizes(size, factor)
    }
    if len({*ratios.values()}) == 1:
        return ratios.popitem()[1]
    differing = [input_size for input_size, ratio in ratios.items() if ratio != factor]
    logger.warning(
        "%s (node %s) of %s resizes by a scale factor of %s, which PyTorch's CPU kernel doesn't read for sizes of %s to %s, "
        "so that their values differ from eager's: resize to a size, or give recompute_scale_factor=True",
        *(node.target, node, module_of(node), factor, min(differing), max(differing)),
    )
    return factor


def _same(
    size: int, out: int | torch.SymInt, factor: float, ratios: Sequence[int]
) -> float:
    """Return the scale that is used for one size: the ratio of sizes, or the factor."""
    same = (float(r) for r in ratios if isinstance(out, int) and out == r * size)
    return next(same, factor)


def _sizes(size: torch.SymInt, factor: float) -> range:
    """Return the sizes that a dynamic dimension may have, up to where the factor decides for all of them."""
    environment = size.node.shape_env
    assert environment is not None
    bounds = environment.bound_sympy(size.node.expr)
    # Beyond, what the factor leaves of a ratio is a pixel or more.
    last = max(int(1 / abs(factor - ratio)) + 2 for ratio in (1, 2) if factor != ratio)
    lower = max(1, int(bounds.lower))
    upper = last if bounds.upper == int_oo else int(bounds.upper)
    return range(lower, max(lower, min(upper, last, lower + _MOST_SIZES)) + 1)
