"""Fake outputs of an engine call, with data-dependent shapes.

Computed from hints, which such a size doesn't have, they fail: ``Failed to create SymInt for expression
2*u0``. Computed on the sizes themselves, they need no hint.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Mapping, Sequence

import torch
from torch._guards import detect_fake_mode
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

#: What engines return for what the partition returns: under ``truncate_double``, the partition's is
#: recorded, and engines have no float64.
_DTYPES = {torch.float64: torch.float32}


def outputs_of_engine(
    inputs: Sequence[torch.Tensor],
    shape_info: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[torch.Tensor]:
    """Return an engine's outputs, fake if ``inputs`` are.

    Args:
        inputs: The engine's inputs, of shapes that it is called with.
        shape_info: As compiling recorded it: per input and output, ``shape_exprs``, ints and
            sympy expressions, and ``dtype``.

    Raises:
        RuntimeError: An output has a size that no input's size determines.
    """
    sizes: dict[Any, Any] = {}
    for tensor, info in zip(inputs, shape_info.get("inputs", ()), strict=False):
        for expression, size in zip(info["shape_exprs"], tensor.shape, strict=False):
            sizes = {**_symbols_of(size, expression), **sizes, expression: size}
    outputs = []
    with detect_fake_mode(inputs) or nullcontext():
        for info in shape_info.get("outputs", ()):
            shape = [_size(expression, sizes) for expression in info["shape_exprs"]]
            dtype = _DTYPES.get(info["dtype"], info["dtype"])
            outputs.append(torch.empty(shape, dtype=dtype, device=inputs[0].device))
    return outputs


def _symbols_of(size: Any, expression: Any) -> dict[Any, Any]:
    """Return the symbols of ``size`` as sizes, if it is still spelled as ``expression``.

    An engine behind a ``cat`` in PyTorch may have only an input of ``2*s0`` rows, and an output of
    ``s0``. In the program that it was compiled in, ``s0`` is there to be asked.
    """
    if not isinstance(size, torch.SymInt) or size.node.expr != expression:
        return {}
    environment = size.node.shape_env
    assert environment is not None
    return {
        symbol: environment.create_symintnode(symbol, hint=None)
        for symbol in size.node.expr.free_symbols
    }


def _size(expression: Any, sizes: Mapping[Any, Any]) -> Any:
    if isinstance(expression, int):
        return expression
    if expression in sizes:
        return sizes[expression]
    symbols = sorted(expression.free_symbols, key=str)
    if unknown := [str(symbol) for symbol in symbols if symbol not in sizes]:
        raise RuntimeError(
            f"an engine's output has the size {expression}, and none of its inputs has "
            f"{', '.join(unknown)}: export it with the shapes that it was compiled for, without "
            "retrace or with their dynamic_shapes"
        )
    known = {symbol: sizes[symbol] for symbol in symbols}
    return sympy_interp(PythonReferenceAnalysis, known, expression)
