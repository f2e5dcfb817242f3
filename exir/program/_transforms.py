"""Let partitioners transform programs before decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram

_behind: ContextVar[Sequence[Partitioner]] = ContextVar("_behind", default=())


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
