"""Amends ``cuda_backend``: weights of few bits are packed, and read as they are kept, before all else."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from executorch.backends.cuda._quantized_weights import keep_quantized


def apply(module: ModuleType) -> None:
    """Have ``CudaBackend`` keep quantized what it moves to the device."""
    backend: Any = module.CudaBackend
    move = backend.move_program_to_device.__func__

    @functools.wraps(move)
    def move_program_to_device(cls: Any, edge_program: Any, *args: Any) -> Any:
        keep_quantized(edge_program)
        return move(cls, edge_program, *args)

    backend.move_program_to_device = classmethod(move_program_to_device)
