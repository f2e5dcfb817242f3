"""Amends ``cuda_backend``: no branch of control flow holds tensors that AOTInductor can't compile."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from executorch.backends.aoti._branch_constants import (
    inline_branch_constants,
)


def apply(module: ModuleType) -> None:
    """Have ``CudaBackend`` inline the constants of branches before it moves a program to the device."""
    backend: Any = module.CudaBackend
    move = backend.move_program_to_device.__func__

    @functools.wraps(move)
    def move_program_to_device(cls: Any, edge_program: Any, *args: Any) -> Any:
        inline_branch_constants(edge_program.graph_module)
        return move(cls, edge_program, *args)

    backend.move_program_to_device = classmethod(move_program_to_device)
