"""Amends ``executorch.exir.program._program``: methods share state, and a program says what they have in common.

An amendment of this distribution's, not a file to merge: upstream would place shared buffers in
``MemoryPlanningPass.run_multimethod``, and ask `common_state` where it serializes a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Look at the methods before they are planned, and where a program is made of them."""
    edge, manager = module.EdgeProgramManager, module.ExecutorchProgramManager
    edge.to_executorch = wrapped(
        edge.to_executorch, _to_executorch, like=undecorated(edge.to_executorch)
    )
    manager.__init__ = wrapped(manager.__init__, _init)


def _to_executorch(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.passes._shared_buffers import SHARED, choose

    manager, config = args[0], kwargs.get("config", args[1] if args[1:] else None)
    plans = _sharing(config, manager.methods)
    if not plans:
        return function(*args, **kwargs)
    programs = {name: manager.exported_program(name) for name in plans}
    on_devices = getattr(config, "enable_non_cpu_memory_planning", False)
    token = SHARED.set(choose(programs, on_devices))
    try:
        return function(*args, **kwargs)
    finally:
        SHARED.reset(token)


def _sharing(config: Any, methods: Iterable[str]) -> dict[str, Any]:
    """The planning passes of the methods that share buffers."""
    given = getattr(config, "memory_planning_pass", None)
    plans = {n: given.get(n) if isinstance(given, dict) else given for n in methods}
    return {
        name: each
        for name, each in plans.items()
        if getattr(each, "share_mutable_buffers", False)
    }


def _init(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.passes._shared_buffers import SHARED, place
    from executorch.exir.program._common_state import KEY
    from executorch.exir.program._common_state import SHARED as SHARED_ARENAS
    from executorch.exir.program._common_state import common_state
    from executorch.exir.program._external_data import with_table

    call = signature(function).bind(*args, **kwargs)
    programs = call.arguments["execution_programs"]
    arenas: frozenset[int] = frozenset()
    if shared := SHARED.get():
        plans = _sharing(call.arguments.get("backend_config"), programs)
        alignment = max(each.alignment for each in plans.values())
        planned = {name: programs[name] for name in plans}
        arenas = place(planned, shared, alignment)
    found = common_state(programs, arenas)
    if found.buffers:
        for kind, text, advice in found.needs():
            if kind != SHARED_ARENAS:
                warn(f"{text}. {advice}")
        named = call.arguments.get("named_data")
        call.arguments["named_data"] = with_table(named, KEY, found.as_table())
    return function(*call.args, **call.kwargs)
