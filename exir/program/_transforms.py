"""Apply partitioners' transforms to each method's program, before decomposition and before each partitioning."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.program.operators.calls import calls
from torch.export import ExportedProgram
from torch.fx import Node

_behind: ContextVar[Sequence[Partitioner]] = ContextVar("_behind", default=())


def of_each_program(
    transform: Callable[[ExportedProgram], ExportedProgram],
) -> Callable[[Any], Any]:
    """Extend a transform of a program to the arguments of ``to_edge``: a dict of programs as well; others are returned unchanged."""

    @functools.wraps(transform)
    def transform_each(programs: Any) -> Any:
        if isinstance(programs, dict):
            return {name: transform_each(program) for name, program in programs.items()}
        return (
            transform(programs) if isinstance(programs, ExportedProgram) else programs
        )

    return transform_each


def with_calls_replaced(
    program: ExportedProgram,
    wanted: Callable[[Node], bool],
    replace: Callable[[Node], None],
) -> ExportedProgram:
    """Return a copy of a program of whose calls those that are wanted were replaced; the program if it has none.

    Args:
        program: It is left as it is.
        wanted: Whether a call is to be replaced.
        replace: Replaces a call of the copy, in place.
    """
    if not any(map(wanted, calls(program.graph_module))):
        return program
    module = copy.deepcopy(program.graph_module)
    for node in [*filter(wanted, calls(module))]:
        replace(node)
    module.recompile()
    return program._update(module, program.graph_signature)


def partitioners_behind() -> Sequence[Partitioner]:
    """Return the partitioners that come after the one whose transform this is."""
    return _behind.get()


def transformed(
    program: ExportedProgram, partitioners: Sequence[Partitioner]
) -> ExportedProgram:
    """Return ``program`` as the partitioners that transform programs leave it."""
    for i, partitioner in enumerate(partitioners):
        transform = getattr(partitioner, "transform_for_pre_decomposition", None)
        if transform is not None:
            token = _behind.set(partitioners[i + 1 :])
            try:
                program = transform(program)
            finally:
                _behind.reset(token)
    return program


def prepare_to_partition(
    programs: Mapping[str, ExportedProgram], partitioners: Mapping[str, Partitioner]
) -> None:
    """Call ``prepare_to_partition`` of the partitioners that have it, which may change the programs.

    A partitioner may not change a program while it partitions. Unlike ``transform_for_pre_decomposition``, this runs in
    edge dialect, after the earlier partitioners' delegates are lowered.

    Args:
        programs: By method, in edge dialect. They are changed.
        partitioners: By method, the next one.
    """
    for method, partitioner in partitioners.items():
        prepare = getattr(partitioner, "prepare_to_partition", None)
        if prepare is not None:
            prepare(programs[method])
