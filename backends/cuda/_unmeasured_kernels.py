"""Kernels where nothing can be timed: compiled and saved without a run, chosen without a race."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


def answers() -> dict[str, Callable[..., Any]]:
    """What takes the place of Inductor's running and timing of kernels, within a scope."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    select = AlgorithmSelectorCache.__call__

    def select_without_timing(
        self: Any, name: str, choices: list[Any], *args: Any, **kwargs: Any
    ) -> Any:
        return select(self, name, choices[:1], *args, **kwargs)

    return {
        "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_and_run_autotune_block": (
            _compile_and_save
        ),
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__": select_without_timing,
    }


def _compile_and_save(wrapper: Any) -> None:
    """Compile the kernels of a wrapper, and hand them to Inductor as if they had been run.

    In place of ``PythonWrapperCodegen.generate_and_run_autotune_block``, which executes the
    definitions of the kernels and then calls on example tensors.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    definitions = wrapper.kernel_autotune_defs.getvalue()
    names: dict[str, Any] = {}
    exec(definitions, names)
    names["async_compile"].wait(names)
    kernels: list[Any] = [
        value for value in names.values() if isinstance(value, CachingAutotuner)
    ]
    for kernel in kernels:
        kernel.precompile()
        launcher, *_ = kernel.launchers
        kernel.save_gpu_kernel("stream", launcher)


@contextlib.contextmanager
def raw_stream_name() -> Any:
    """Scope of the name ``torch._C._cuda_getCurrentRawStream``, which a CPU build lacks.

    The definitions of kernels begin with a look-up of it. It is gone again afterwards: others
    test for it.
    """
    import torch

    name = "_cuda_getCurrentRawStream"
    if hasattr(torch._C, name):
        yield
        return
    setattr(torch._C, name, lambda device: 0)
    try:
        yield
    finally:
        delattr(torch._C, name)
