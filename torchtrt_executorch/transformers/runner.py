"""Run transformers' exported programs in this distribution's runtime where ExecuTorch's lacks a backend.

The runtime in ExecuTorch's wheel has neither TensorRT nor, mostly, CUDA. A program with a delegate
that it has no backend for is run by :mod:`torchtrt_executorch.runtime`, on torch tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtrt_executorch.runtime.reading.data_files import data_files


def with_backends(program: Any) -> Any:
    """Return ``program`` in our runtime, if ExecuTorch's lacks a backend that it needs; else itself."""
    files = _files_of(program)
    if files is None or not _missing_backends(files[0]):
        return program
    return _Program(*files)


def _files_of(program: Any) -> tuple[Any, list[Any]] | None:
    """Return a program and its weights, as paths or bytes; None for what has no file."""
    if hasattr(program, "executorch_program"):  # as it was exported
        tensors = getattr(program, "_tensor_data", None) or {}
        return program.buffer, [bytes(data) for data in tensors.values()]
    path = getattr(program, "path", None)  # as transformers has loaded it
    return None if path is None else (Path(path), list(data_files(Path(path))))


def _missing_backends(program: Any) -> set[str]:
    from executorch.runtime import Runtime

    from torchtrt_executorch.runtime.reading.files import read_program

    wanted = {
        delegate.id
        for plan in read_program(program).program.execution_plan
        for delegate in plan.delegates
    }
    return wanted - set(Runtime.get().backend_registry.registered_backend_names)


class _Program:
    """A program in our runtime, as ``executorch.runtime.Program`` offers it to a runner."""

    def __init__(self, program: Any, weights: Sequence[Any]) -> None:
        from torchtrt_executorch.runtime import load

        self._program = load(program, weights)

    def load_method(self, name: str) -> _Method:
        return _Method(self._program.method(name))


class _Method:
    def __init__(self, method: Any) -> None:
        self._method = method

    def execute(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the method on its flat inputs, numbers and None among them."""
        return list(self._method(*inputs))
