"""Amends ``executorch.exir.program._program``: engines go in, and files come out whole.

Who drives ExecuTorch without :func:`torch_tensorrt.executorch.export` gets the same: programs
that hold TensorRT engines go through ``to_edge`` and ``to_edge_transform_and_lower``
(pytorch/TensorRT#4329), and ``save`` leaves no external weights behind (pytorch/TensorRT#4404).
"""

from __future__ import annotations

import os
import sys
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torch.export import ExportedProgram

from torchtrt_executorch.files import (
    check_writable,
    staged,
    write_data_files,
    write_program,
)
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped
from torchtrt_executorch.progress import as_step


def apply(module: ModuleType) -> None:
    """Wrap the two ways into ExecuTorch, and the ways out of it."""
    edge, manager = module.EdgeProgramManager, module.ExecutorchProgramManager
    lower = module.to_edge_transform_and_lower
    vars(module).update(
        serialize_for_executorch=wrapped(module.serialize_for_executorch, _serialize),
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
    manager.save = wrapped(manager.save, _save)
    manager.write_tensor_data_to_file = wrapped(
        manager.write_tensor_data_to_file, _write_data
    )


def _bounded(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Name the operator whose result has no largest size, and say where to put one."""
    from executorch.exir._data_dependent import first_unbounded

    try:
        return function(*args, **kwargs)
    except Exception as error:
        if "finite upper bound" not in str(error):
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


def _serialize(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._external_data import with_expected_data

    call = signature(function).bind(*args, **kwargs)
    call.arguments["named_data_store"] = with_expected_data(
        call.arguments["emitter_output"],
        call.arguments.get("named_data_store"),
        trained_on=call.arguments["config"].external_mutable_weights,
    )
    return function(*call.args, **call.kwargs)


def _save(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    def save(manager: Any, path: str | os.PathLike[str]) -> None:
        target = check_writable(path)
        if target.suffix != ".pte":
            raise ValueError(
                f"can't save to {target}: an ExecuTorch program's file ends in .pte"
            )
        with staged(target) as folder:
            write_program(manager, folder / target.name)

    save(*args, **kwargs)


def _write_data(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    call = signature(function).bind(*args, **kwargs)
    manager, folder = call.args
    write_data_files(lambda path: function(manager, path), folder)
