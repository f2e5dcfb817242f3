"""Amends ``executorch.exir.program._program``: a program says what state its methods have in common.

An amendment of this distribution's, not a file to merge: upstream would ask `common_state` where it
serializes a program.
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Look at the methods where a program is made of them."""
    manager = module.ExecutorchProgramManager
    manager.__init__ = wrapped(manager.__init__, _init)


def _init(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.program._common_state import KEY, common_state
    from executorch.exir.program._external_data import with_table

    call = signature(function).bind(*args, **kwargs)
    found = common_state(call.arguments["execution_programs"])
    if found.buffers:
        for text, advice, _ in found.problems():
            warn(f"{text}. {advice}")
        named = call.arguments.get("named_data")
        call.arguments["named_data"] = with_table(named, KEY, found.as_table())
    return function(*call.args, **call.kwargs)
