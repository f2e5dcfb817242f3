"""Amends ``executorch.exir.program._program``: the partitioners of a program compile for one target.

``CompileSpec("gpu", ...)`` of one of them is in force for all of them, TensorRT's as well, and
``TORCHTRT_GPU`` has to name the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.host.described_gpu import GPU_COMPILE_SPEC_KEY, compiling_for
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped

#: Backends that compile for a GPU; a compile spec of that name may mean anything to others.
_BACKENDS = ("CudaBackend", "TensorRTBackend")


def apply(module: ModuleType) -> None:
    """Wrap what takes partitioners."""
    lower = module.to_edge_transform_and_lower
    to_backend = module.EdgeProgramManager.to_backend
    module.to_edge_transform_and_lower = wrapped(  # type: ignore[attr-defined]
        lower, _for_one_target, like=undecorated(lower)
    )
    module.EdgeProgramManager.to_backend = wrapped(
        to_backend, _for_one_target, like=undecorated(to_backend)
    )


def _for_one_target(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = signature(undecorated(function)).bind(*args, **kwargs)
    with compiling_for([*_named(call.arguments.get("partitioner"))]):
        return function(*args, **kwargs)


def _named(partitioners: Any) -> Iterator[tuple[str, str]]:
    """Yield who names a target among ``partitioners``, and the target."""
    if isinstance(partitioners, Mapping):
        partitioners = [*partitioners.values()]
    if isinstance(partitioners, Sequence):
        for each in partitioners:
            yield from _named(each)
        return
    delegation = getattr(partitioners, "delegation_spec", None)
    if delegation is not None and delegation.backend_id in _BACKENDS:
        for spec in delegation.compile_specs:
            if spec.key == GPU_COMPILE_SPEC_KEY:
                who = f"{type(partitioners).__name__}'s CompileSpec({spec.key!r})"
                yield who, bytes(spec.value).decode()
