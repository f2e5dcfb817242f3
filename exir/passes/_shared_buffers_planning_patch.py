"""Amends ``executorch.exir.passes.memory_planning_pass``: leaves shared buffers to who places them in all methods.

An amendment of this distribution's, not a file to merge: upstream would withhold them from its algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped

#: Of an arena that no method has.
_NOWHERE = 1 << 20


def apply(module: ModuleType) -> None:
    """Wrap the planning of one method."""
    planning = module.MemoryPlanningPass
    planning.run = wrapped(planning.run, _run)


def _run(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.passes._shared_buffers import SHARED

    planning, graph_module = args[0], [*args[1:], *kwargs.values()][0]
    if SHARED.get() is None or not planning.share_mutable_buffers:
        return function(*args, **kwargs)
    with _without_buffers(planning, graph_module):
        return function(*args, **kwargs)


@contextmanager
def _without_buffers(planning: Any, graph_module: Any) -> Iterator[None]:
    """Scope in which a planning pass gives mutable buffers no memory, nor their new values on devices."""
    from executorch.exir.passes._shared_buffers import withheld

    algorithm = planning.memory_planning_algo

    def plan(alignment: int, specs: Any, *rest: Any) -> Any:
        left_out = withheld(graph_module)
        sizes = algorithm(alignment, [s for s in specs if s not in left_out], *rest)
        for index, spec in enumerate(each for each in specs if each in left_out):
            # Of no other's: the verifier looks for memory that is given away twice.
            spec.realign(alignment)
            spec.mem_id, spec.mem_offset = _NOWHERE + index, 0
        return sizes

    planning.share_mutable_buffers = planning.alloc_mutable_buffers = False
    planning.memory_planning_algo = plan
    try:
        yield
    finally:
        planning.share_mutable_buffers = planning.alloc_mutable_buffers = True
        planning.memory_planning_algo = algorithm
