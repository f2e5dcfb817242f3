"""Amends ``executorch.exir.program._program``: partitioners may transform programs before they are decomposed.

ExecuTorch 1.5 calls ``Partitioner.transform_for_pre_decomposition`` by itself; here earlier releases
call it too, where a partitioner has it.
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable, Mapping

from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.program._transforms import transformed
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

    def of(method: str, program: Any) -> Any:
        of_method = given.get(method) if isinstance(given, Mapping) else given
        if isinstance(of_method, (list, tuple)) and isinstance(
            program, ExportedProgram
        ):
            return transformed(program, of_method)
        return program

    if isinstance(programs, dict):
        call.arguments["programs"] = {
            method: of(method, program) for method, program in programs.items()
        }
    else:
        call.arguments["programs"] = of("forward", programs)
    return function(*call.args, **call.kwargs)
