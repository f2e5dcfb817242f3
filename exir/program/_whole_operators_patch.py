"""Amends ``executorch.exir.program._program``: a method's partitioners are asked together what stays whole.

Upstream: pytorch/executorch#8781.
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable, Mapping

from executorch.exir.error import InternalError
from executorch.exir.program._whole_operators import (
    AllPartitioners,
    check_nothing_left,
    nobody_s_loops,
    nobody_s_operators,
)

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Wrap what asks the partitioners, and check in the end what came of their answers."""
    lower, edge = module.to_edge_transform_and_lower, module.EdgeProgramManager
    edge.to_executorch = wrapped(
        edge.to_executorch, _emit_or_name, like=undecorated(edge.to_executorch)
    )
    vars(module).update(
        _gen_edge_manager_for_partitioners=wrapped(
            module._gen_edge_manager_for_partitioners, _asked_together
        ),
        _sanity_check_graph_for_non_decomp_ops=_checked_once_lowered,
        to_edge_transform_and_lower=wrapped(
            lower, _lower_and_check, like=undecorated(lower)
        ),
    )


def _asked_together(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = signature(function).bind(*args, **kwargs)
    call.arguments["partitioner"] = {
        method: [AllPartitioners(several)] if several else several
        for method, several in call.arguments["partitioner"].items()
    }
    return function(*call.args, **call.kwargs)


def _checked_once_lowered(*args: Any, **kwargs: Any) -> None:
    """Check nothing, in the place of upstream's check: :func:`_lower_and_check` does."""


def _lower_and_check(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    edge = function(*args, **kwargs)
    call = signature(undecorated(function)).bind(*args, **kwargs)
    given = call.arguments.get("partitioner")
    for method in edge.methods:
        partitioners = given.get(method) if isinstance(given, Mapping) else given
        check_nothing_left(edge.exported_program(method), partitioners or (), method)
    return edge


def _emit_or_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except (RuntimeError, InternalError) as error:
        edge, message = args[0], str(error)
        programs = ((name, edge.exported_program(name)) for name in edge.methods)
        if message.startswith("Missing out variants"):
            said = nobody_s_operators(programs, message)
            raise RuntimeError(said or message) from error
        if "Unsupported control flow operator" in message:
            raise RuntimeError(nobody_s_loops(programs) or message) from error
        raise
