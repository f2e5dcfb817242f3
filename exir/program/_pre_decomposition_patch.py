"""Amends ``executorch.exir.program._program``: partitioners may transform programs before they are decomposed.

ExecuTorch 1.5 calls ``Partitioner.transform_for_pre_decomposition`` by itself; here earlier releases
call it too, where a partitioner has it.
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable, Mapping

from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Wrap ``to_edge_transform_and_lower``, unless the hook is upstream's own."""
    if hasattr(Partitioner, "transform_for_pre_decomposition"):
        return
    lower = module.to_edge_transform_and_lower
    module.to_edge_transform_and_lower = wrapped(  # type: ignore[attr-defined]
        lower, _transform_and_lower, like=undecorated(lower)
    )


def _transform_and_lower(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = signature(undecorated(function)).bind(*args, **kwargs)
    programs, given = call.arguments["programs"], call.arguments.get("partitioner")

    def transformed(method: str, program: Any) -> Any:
        of_method = given.get(method) if isinstance(given, Mapping) else given
        if not isinstance(of_method, (list, tuple)):
            return program
        for partitioner in of_method:
            transform = getattr(partitioner, "transform_for_pre_decomposition", None)
            if transform is not None and isinstance(program, ExportedProgram):
                program = transform(program)
        return program

    if isinstance(programs, dict):
        call.arguments["programs"] = {
            method: transformed(method, program) for method, program in programs.items()
        }
    else:
        call.arguments["programs"] = transformed("forward", programs)
    return function(*call.args, **call.kwargs)
