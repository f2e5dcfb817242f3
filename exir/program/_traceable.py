"""Make programs with compiled parts traceable by ExecuTorch's passes."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from torch.export import ExportedProgram

#: By package, its function that makes a program traceable; only used if the package is imported.
_TRANSFORMS = {
    "torch_tensorrt": "torch_tensorrt.executorch.engines.placeholders:with_engine_placeholders",
}


def traceable(programs: Any) -> Any:
    """Return a program, or each of a dict's, in a form that ExecuTorch's passes can trace.

    One with nothing to change is returned itself, and so is what is no program.
    """
    if isinstance(programs, dict):
        return {name: traceable(program) for name, program in programs.items()}
    if isinstance(programs, ExportedProgram):
        for package, transform in _TRANSFORMS.items():
            if package in sys.modules:
                module, name = transform.split(":")
                programs = getattr(import_module(module), name)(programs)
    return programs
