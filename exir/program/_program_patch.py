"""Amends ``executorch.exir.program._program``: engines on the way in, data files on the way out.

Who drives ExecuTorch without :func:`torch_tensorrt.executorch.export` gets the same: programs
that hold TensorRT engines go through ``to_edge`` and ``to_edge_transform_and_lower``
(pytorch/TensorRT#4329), and ``save`` leaves no external weights behind (pytorch/TensorRT#4404).
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Callable

from torch.export import ExportedProgram

from torchtrt_executorch.data_dependent import forget_unclaimed_symbols
from torchtrt_executorch.files import check_writable, staged, write_program
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Wrap the two ways into ExecuTorch, and the manager's ``save``."""
    manager = module.ExecutorchProgramManager
    vars(module).update(
        to_edge=wrapped(module.to_edge, _lower, like=undecorated(module.to_edge)),
        to_edge_transform_and_lower=wrapped(
            module.to_edge_transform_and_lower,
            _lower,
            like=undecorated(module.to_edge_transform_and_lower),
        ),
    )
    manager.save = wrapped(manager.save, _save)


def _lower(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if "programs" in kwargs:
        kwargs["programs"] = _traceable(kwargs["programs"])
    elif args:
        args = (_traceable(args[0]), *args[1:])
    return function(*args, **kwargs)


def _traceable(programs: Any) -> Any:
    """Return the program, or each of a dict's, in a form that ExecuTorch's passes can trace."""
    if isinstance(programs, dict):
        return {name: _traceable(program) for name, program in programs.items()}
    if not isinstance(programs, ExportedProgram):
        return programs  # upstream's to complain about
    forget_unclaimed_symbols(programs)
    if "torch_tensorrt" not in sys.modules:
        return programs  # nobody can have compiled an engine
    from torchtrt_executorch.patches.torch_tensorrt.executorch._engine_placeholders import (
        with_engine_placeholders,
    )

    return with_engine_placeholders(programs)


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
