"""Emulated engines: everything after the partitioning, without TensorRT.

Instead of building an engine, the partition's own ``ExportedProgram`` becomes the engine's
payload (:mod:`.payload`). The compiled module runs it eagerly (:mod:`.engine`), and the export
treats it like any other engine: same engine record, same blob, same delegate.

An emulated engine is reported: in the log when it is built, by inspection, and in the error
when TensorRT's own features are used on it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Iterator

SWITCH = "TORCHTRT_EMULATE"

_asked: ContextVar[bool] = ContextVar(
    "torchtrt_executorch_emulated_engines", default=False
)


def emulation_enabled() -> bool:
    """Whether engines built now are emulated: in :func:`emulated_engines`, or by the environment."""
    return _asked.get() or os.environ.get(SWITCH, "0") not in ("", "0")


@contextmanager
def emulated_engines() -> Iterator[None]:
    """Emulate the engines that are built, and may be loaded from files, inside the ``with``.

    ``TORCHTRT_EMULATE=1`` in the environment does the same for the whole process. Modules
    compiled inside go on running outside.
    """
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


__all__ = ["SWITCH", "emulated_engines", "emulation_enabled"]
