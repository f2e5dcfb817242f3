"""Amends ``executorch.exir.program._program``: engines go in.

Who drives ExecuTorch without :func:`torch_tensorrt.executorch.export` gets the same: programs that
hold TensorRT engines go through ``to_edge`` and ``to_edge_transform_and_lower`` (pytorch/TensorRT#4329).
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Callable

from torch.export import ExportedProgram

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped
from torchtrt_executorch.progress import as_step


def apply(module: ModuleType) -> None:
    """Wrap the two ways into ExecuTorch, and the way on."""
    edge = module.EdgeProgramManager
    lower = module.to_edge_transform_and_lower
    vars(module).update(
        to_edge=wrapped(module.to_edge, _lower, like=undecorated(module.to_edge)),
        to_edge_transform_and_lower=wrapped(
            wrapped(
                lower,
                as_step("ExecuTorch: to_edge_transform_and_lower"),
                like=undecorated(lower),
            ),
            _lower,
        ),
    )
    finish = edge.to_executorch
    edge.to_executorch = wrapped(
        wrapped(finish, as_step("ExecuTorch: to_executorch"), like=undecorated(finish)),
        _bounded,
    )


def _bounded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Name the operator whose result has no largest size, and say where to put one."""
    from executorch.exir._data_dependent import first_unbounded

    try:
        return function(*args, **kwargs)
    except Exception as error:
        if "upper bound" not in str(error):  # executorch 1.3 words it differently
            raise
        manager = args[0]
        for method in manager.methods:
            if node := first_unbounded(manager.exported_program(method)):
                raise RuntimeError(
                    f"{method}: ExecuTorch plans memory for the largest result, and that of {node} "
                    f"({node.target}) has no bound: say it in the model, after the operator, with "
                    "torch._check(result.shape[0] <= n)"
                ) from error
        raise


def _lower(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    given = kwargs.get("programs", args[0] if args else None)
    if "programs" in kwargs:
        kwargs["programs"] = _traceable(given)
    elif args:
        args = (_traceable(given), *args[1:])
    try:
        return function(*args, **kwargs)
    finally:  # the caller's next pass would trip over those of lowering
        _forget_symbols(given)


def _forget_symbols(programs: Any) -> None:
    from executorch.exir._data_dependent import forget_unclaimed_symbols

    for program in programs.values() if isinstance(programs, dict) else [programs]:
        if isinstance(program, ExportedProgram):
            forget_unclaimed_symbols(program)


def _traceable(programs: Any) -> Any:
    """Return the program, or each of a dict's, in a form that ExecuTorch's passes can trace."""
    if isinstance(programs, dict):
        return {name: _traceable(program) for name, program in programs.items()}
    if not isinstance(programs, ExportedProgram):
        return programs  # upstream's to complain about
    _forget_symbols(programs)
    if "torch_tensorrt" not in sys.modules:
        return programs  # nobody can have compiled an engine
    from torch_tensorrt.executorch._engine_placeholders import (
        with_engine_placeholders,
    )

    return with_engine_placeholders(programs)
