"""Amends ``executorch.exir.passes.memory_planning_pass``: says which arenas methods share.

An amendment of this distribution's, not a file to merge: upstream would note them where it plans them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap what is planned for a method, and for all methods together."""
    planning = module.MemoryPlanningPass
    planning.run = wrapped(planning.run, _run)
    planning.run_multimethod = wrapped(planning.run_multimethod, _run_multimethod)


def _run(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._common_state import SHARED_ARENAS_META

    result = function(*args, **kwargs)
    # The program gets a copy of the metadata, in which this is the same list.
    result.graph_module.meta[SHARED_ARENAS_META] = []
    return result


def _run_multimethod(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._common_state import SHARED_ARENAS_META

    result = function(*args, **kwargs)
    for graph_module in args[0].state.graph_modules:
        last = len(graph_module.meta["non_const_buffer_sizes"]) - 1
        graph_module.meta[SHARED_ARENAS_META].append(last)
    return result
