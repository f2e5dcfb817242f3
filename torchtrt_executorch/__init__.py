"""Torch-TensorRT and ExecuTorch, made to compose: one ``.pte`` over both.

Installing this distribution is enough: ``import torch`` activates the overlay
(:mod:`torchtrt_executorch.overlay`). What is offered here by name is loaded on first use,
because this package is imported whenever torch is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchtrt_executorch.inspection.report import report as report
    from torchtrt_executorch.nogpu.emulation import emulated_engines as emulated_engines
    from torchtrt_executorch.nogpu.emulation.engine_build import (
        build_engines as build_engines,
    )

__version__ = "0.1.0"
__all__ = ["build_engines", "emulated_engines", "report"]

_HOMES = {
    "build_engines": "torchtrt_executorch.nogpu.emulation.engine_build",
    "emulated_engines": "torchtrt_executorch.nogpu.emulation",
    "report": "torchtrt_executorch.inspection.report",
}


if not TYPE_CHECKING:  # else a checker would take any name for one of this package's

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
