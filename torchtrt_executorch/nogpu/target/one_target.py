"""Apply the target GPU that one partitioner names to all partitioners of a program.

``CompileSpec("gpu", ...)`` of one partitioner holds for all of them, TensorRT's as well, and
``TORCHTRT_GPU`` has to name the same GPU.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchtrt_executorch.nogpu.target.gpu_description import (
    GPU_COMPILE_SPEC_KEY,
    GpuDescription,
    compiling_for,
)

#: Backends that compile for a GPU; a compile spec of that name may mean anything to others.
_BACKENDS = ("CudaBackend", "TensorRTBackend")


def for_one_target(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function with a parameter ``partitioner``: all that it lowers is for one target.

    Raises (the decorated function):
        ValueError: A target is no description of a GPU, or two differ.
    """
    signature = inspect.signature(lower)

    @functools.wraps(lower)
    def lower_for_one_target(*args: Any, **kwargs: Any) -> Any:
        partitioner = signature.bind(*args, **kwargs).arguments.get("partitioner")
        with compiling_for([*_targets(partitioner)]):
            return lower(*args, **kwargs)

    return lower_for_one_target


def check_gpu_descriptions(compile_specs: Sequence[Any]) -> None:
    """Check the compile specs that describe a GPU.

    Raises:
        ValueError: One is no description.
    """
    for spec in compile_specs:
        if spec.key == GPU_COMPILE_SPEC_KEY:
            GpuDescription.parse_list(bytes(spec.value).decode())


def _targets(partitioners: Any) -> Iterator[tuple[str, str]]:
    """Yield who names a target among ``partitioners``, and the target."""
    if isinstance(partitioners, Mapping):
        partitioners = [*partitioners.values()]
    if isinstance(partitioners, Sequence):
        for partitioner in partitioners:
            yield from _targets(partitioner)
        return
    delegation = getattr(partitioners, "delegation_spec", None)
    if delegation is not None and delegation.backend_id in _BACKENDS:
        for spec in delegation.compile_specs:
            if spec.key == GPU_COMPILE_SPEC_KEY:
                who = f"{type(partitioners).__name__}'s CompileSpec({spec.key!r})"
                yield who, bytes(spec.value).decode()
