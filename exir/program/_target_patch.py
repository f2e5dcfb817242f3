"""Amends ``executorch.exir.program._program``: the partitioners of a program compile for one target.

``CompileSpec("gpu", ...)`` of one of them is in force for all of them, TensorRT's as well, and
``TORCHTRT_GPU`` has to name the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torch.export import ExportedProgram

from torchtrt_executorch.host.described_gpu import (
    GPU_COMPILE_SPEC_KEY,
    chosen,
    compiling_for,
)
from torchtrt_executorch.inspection.gpus import engine_runs_on
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped

#: Backends that compile for a GPU; a compile spec of that name may mean anything to others.
_BACKENDS = ("CudaBackend", "TensorRTBackend")
#: The device in the record of an engine that was built without one.
_DESCRIBED = re.compile(r"described (?P<gpu>sm_\d+)(, built for (?P<several>.+))?")


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
        _check_engines(call.arguments.get("programs"))
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


def _check_engines(programs: Any) -> None:
    """Check that engines which were built before run on the target.

    Raises:
        ValueError: One doesn't.
    """
    gpus = chosen()
    if not gpus or "torch_tensorrt" not in sys.modules:
        return
    from torch_tensorrt.executorch._engine_nodes import engine_nodes
    from torch_tensorrt.executorch._engine_record import Slot, text
    from torch_tensorrt.executorch.backend import _get_engine_info_for_node

    for program in programs.values() if isinstance(programs, Mapping) else [programs]:
        if not isinstance(program, ExportedProgram):
            continue
        for node in engine_nodes(program.graph.nodes):
            record = _get_engine_info_for_node(program, node, metadata_only=True)
            if text(record, Slot.HARDWARE_COMPATIBLE) == "1":
                continue
            built_for = _built_for(text(record, Slot.DEVICE))
            for gpu in gpus:
                major, minor = gpu.capability
                if built_for and not engine_runs_on(built_for, major * 10 + minor):
                    raise ValueError(
                        f"the engine {node.name} was built for {', '.join(built_for)}, and doesn't run "
                        f"on the target {gpu.text}: set TORCHTRT_GPU to the target where engines are "
                        "built, or have TensorRTPartitioner(compile_settings=...) build them"
                    )


def _built_for(device: str) -> list[str]:
    """Return the GPUs that an engine runs on, by its record's device; none if it isn't known."""
    fields = device.split("%")
    found = _DESCRIBED.fullmatch(fields[-1])
    if found is None:
        known = len(fields) > 2 and all(each.isdigit() for each in fields[1:3])
        return [f"sm_{fields[1]}{fields[2]}"] if known else []
    if not found["several"]:
        return [found["gpu"]]
    several, later, _ = found["several"].partition(" and later")
    names = several.split(", ")
    return [*names, f"{names[-1]}+"] if later else names
