"""Clear what lowering leaves behind: pending unbacked symbols, and programs in caches."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Callable

from executorch.exir._data_dependent import forget_unclaimed_symbols
from executorch.exir.backend import utils
from executorch.exir.delegate import executorch_call_delegate
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram


def leaves_programs_traceable(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``to_edge`` and the like so that they restore the programs that they are given."""

    @functools.wraps(lower)
    def wrapper(programs: Any, *args: Any, **kwargs: Any) -> Any:
        exported = _exported(programs)
        _forget_symbols(exported)
        # PyTorch 2.13 decomposes into the same table, and what a delegate takes is removed from it.
        constants = [{**program.constants} for program in exported]
        try:
            return lower(programs, *args, **kwargs)
        finally:  # the caller's next pass would trip over those of lowering
            for program, before in zip(exported, constants, strict=True):
                program._constants = before
            _forget_symbols(exported)
            clear_caches()

    return wrapper


def clears_caches(to_executorch: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``to_executorch`` so that it removes lowered programs from the process's caches."""

    @functools.wraps(to_executorch)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return to_executorch(*args, **kwargs)
        finally:
            clear_caches()

    return wrapper


def clear_caches() -> None:
    """Remove lowered programs, with their weights, from caches that would keep them until the process ends."""
    utils.is_same_node.cache_clear()
    # By the operator that is called and what it is called with; what other operators return can be used again.
    for key in list(FakeTensorMode.cache):
        if executorch_call_delegate in key.key:
            FakeTensorMode.cache.pop(key, None)


def _exported(programs: Any) -> list[ExportedProgram]:
    values = programs.values() if isinstance(programs, Mapping) else [programs]
    return [program for program in values if isinstance(program, ExportedProgram)]


def _forget_symbols(programs: list[ExportedProgram]) -> None:
    for program in programs:
        forget_unclaimed_symbols(program)
