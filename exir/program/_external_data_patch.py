"""Amends ``executorch.exir.program._program``: files come out whole, external weights beside the program.

Upstream's ``save`` leaves them behind (pytorch/TensorRT#4404).
"""

from __future__ import annotations

import os
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.files import (
    check_writable,
    staged,
    write_data_files,
    write_program,
)
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Have a program know its data, and wrap what writes either."""
    manager = module.ExecutorchProgramManager
    serialize = module.serialize_for_executorch
    module.serialize_for_executorch = wrapped(serialize, _serialize)  # type: ignore[attr-defined]
    manager.save = wrapped(manager.save, _save)
    manager.write_tensor_data_to_file = wrapped(
        manager.write_tensor_data_to_file, _write_data
    )


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
