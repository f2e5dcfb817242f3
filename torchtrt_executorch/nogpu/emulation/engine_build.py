"""Build the engines of a ``.pte`` whose TensorRT partitions are emulated engines, on the machine that runs it.

An emulated engine is its partition's program, with the settings to build it with. TensorRT's builder needs the
GPU, so a file for a GPU that isn't where it is exported is exported with emulated engines, with all else in it
compiled, and finished there.
"""

from __future__ import annotations

import importlib.util
import operator
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from torchtrt_executorch.files import check_writable, staged
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder
from torchtrt_executorch.nogpu.emulation import SWITCH, emulation_enabled
from torchtrt_executorch.nogpu.emulation.payload import is_emulated, load_plain
from torchtrt_executorch.nogpu.emulation.settings import settings_from, target_from
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.host.building import check_can_build
from torchtrt_executorch.nogpu.target.gpu_description import (
    GpuDescription,
    compiling_for,
    own_platform,
)
from torchtrt_executorch.payloads.engine_blob import (
    TensorRTBlobMetadata,
    deserialize_engine,
    serialize_engine,
)

_BACKEND = "TensorRTBackend"


@dataclass(frozen=True)
class BuiltEngine:
    """The engine built from one partition.

    Attributes:
        name: The method and the delegate's index in it, ``forward, delegate 0``.
        operators: Number of its operators.
        nbytes: Of the serialized engine.
        seconds: Time of the build.
    """

    name: str
    operators: int
    nbytes: int
    seconds: float


def build_engines(
    path: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> list[BuiltEngine]:
    """Build the engines of a ``.pte`` that was exported in ``emulated_engines()``, and write it with them.

    What else is in the file stays as it is, and so do ``.ptd`` files beside it. The file is untrusted input: of
    the programs in it nothing is unpickled or run, and sizes are the only expressions that are evaluated.

    Args:
        path: The file.
        out: Path of the result; by default the file itself. It is written atomically.

    Returns:
        One for each engine, in the file's order.

    Raises:
        ValueError: The file is damaged, has no emulated engine, or brings more than a graph; a program can't be
            built by the TensorRT that is here; the GPU that is here isn't the one it was exported for.
        OSError: It can't be read or written, or this machine can't build engines.
    """
    from executorch.exir._serialize._program import (
        deserialize_pte_binary,
        serialize_pte_binary,
    )

    from torchtrt_executorch.runtime.delegates import inputs_of
    from torchtrt_executorch.runtime.plans.reader import read_plans
    from torchtrt_executorch.runtime.reading.files import read_program

    target = check_writable(path if out is None else out)
    if emulation_enabled():
        raise ValueError(f"{path}: engines are built with {SWITCH} unset")
    data = Path(path).read_bytes()
    plans = read_plans(read_program(data, ()), inputs_of)  # checks it as for running
    file = deserialize_pte_binary(data)
    pending = list(_pending(file.program))
    if not pending:
        raise ValueError(
            f"{path} has no emulated engine to build: export it in emulated_engines()"
        )
    if importlib.util.find_spec("torch_tensorrt") is None:
        raise OSError(
            "building engines takes Torch-TensorRT: pip install torch-tensorrt, or torch-tensorrt-rtx, in the release "
            "that exported the file"
        )
    check_can_build(dryrun=False)
    _check_order(path, [*plans.values()])
    payloads = file.program.backend_delegate_data
    built: dict[int, BuiltEngine] = {}
    for name, index in pending:
        if index not in built:
            started = time.monotonic()
            engine, count, blob = _build(name, payloads[index].data)
            payloads[index].data = blob
            built[index] = BuiltEngine(name, count, engine, time.monotonic() - started)
    written = serialize_pte_binary(file, extract_delegate_segments=True)
    with staged(target) as folder, open(folder / target.name, "wb") as stream:
        written.write_to_file(stream)
    return [*built.values()]


def _check_order(path: Any, plans: Sequence[Any]) -> None:
    """Raise ValueError unless delegates are in order for the delegate of the Torch-TensorRT that is here.

    What exported may have been of another release, whose engines are on other streams in ExecuTorch's C++ runtime.
    """
    from torchtrt_executorch.runtime.delegates import about
    from torchtrt_executorch.runtime.plans.placement_check import (
        find_violations,
        needs_shared_stream,
    )

    one_stream = needs_shared_stream(plans)
    for plan in plans:
        for violation in find_violations(plan, about, one_stream):
            raise ValueError(
                f"{path}: {plan.name}: {violation.text}: export it with the release of Torch-TensorRT that is here"
            )


def _pending(program: Any) -> Iterator[tuple[str, int]]:
    """Yield the delegates with emulated engines: what to call each, and its payload's index."""
    for plan in program.execution_plan:
        for number, delegate in enumerate(plan.delegates):
            index = delegate.processed.index
            if delegate.id == _BACKEND:
                payload = program.backend_delegate_data[index].data
                engine, _ = deserialize_engine(memoryview(payload))
                if is_emulated(engine):
                    yield f"{plan.name}, delegate {number}", index


def _build(name: str, payload: bytes) -> tuple[int, int, bytes]:
    """Return the engine's bytes, how many operators it runs, and the blob that it is in."""
    engine, metadata = deserialize_engine(memoryview(payload))
    try:
        program, stored_settings = load_plain(engine)
        settings = settings_from(stored_settings, metadata.device_id)
        target = target_from(stored_settings)
        gpus = GpuDescription.parse_list(target, f"{name}'s target") if target else ()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    is_rtx = installed_builder() is TENSORRT_RTX
    if gpus and not is_rtx:
        _check_here(name, gpus)
    with compiling_for([(name, target)] if target and is_rtx else []):
        result, count = _interpreted(name, program, settings)
    _check_bindings(name, metadata, result)
    platform = gpus[0].platform if gpus and is_rtx else own_platform()
    metadata = replace(
        metadata,
        hardware_compatible=settings.hardware_compatible,
        target_platform=platform.replace("-", "_"),
        aliased_io=dict(getattr(result, "aliased_io", {})),
    )
    plan = result.serialized_engine
    return len(plan), count, serialize_engine(plan, metadata)


def _interpreted(name: str, program: ExportedProgram, settings: Any) -> tuple[Any, int]:
    """Return upstream's ``SerializedInterpreterResult``, and how many operators were converted.

    Raises:
        ValueError: An operator has no converter here, or the builder refuses the partition.
    """
    from torch_tensorrt.dynamo.conversion import _conversion
    from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
    from torch_tensorrt.dynamo.partitioning.common import construct_submodule_inputs

    module: Any = program.module(check_guards=False)
    calls = [
        node
        for node in module.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]
    if lacking := [node for node in calls if node not in DYNAMO_CONVERTERS]:
        targets = ", ".join(dict.fromkeys(str(node.target) for node in lacking))
        raise ValueError(
            f"{name}: the Torch-TensorRT that is installed has no converter for {targets}: export with the same "
            "release, or name them in torch_executed_ops"
        )
    try:
        inputs = construct_submodule_inputs(module)
        result = _conversion.interpret_module_to_result(module, inputs, settings)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        raise ValueError(
            f"{name}: {installed_builder().name} {present.bindings_version()} can't build its engine: "
            f"{f'{error}'.partition(chr(10))[0]}. Export it with torch_executed_ops that leave the operator to others"
        ) from error
    return result, len(calls)


def _check_bindings(name: str, metadata: TensorRTBlobMetadata, result: Any) -> None:
    """Raise ValueError unless the engine's bindings are those that the program binds, by name."""
    wanted = [(b.name, b.is_input) for b in metadata.io_bindings]
    bindings = [
        *((binding, True) for binding in result.input_names),
        *((binding, False) for binding in result.output_names),
    ]
    if sorted(wanted) != sorted(bindings) or result.requires_output_allocator:
        raise ValueError(
            f"{name}: the engine has other inputs or outputs than the program binds, {bindings} for {wanted}, or needs "
            "an output allocator"
        )


def _check_here(name: str, gpus: Sequence[GpuDescription]) -> None:
    """Raise ValueError unless TensorRT, which builds for the GPU at hand, has one that was exported for."""
    here = torch.cuda.get_device_capability() if present.cuda_device() else None
    if own_platform() != gpus[0].platform or here not in [g.capability for g in gpus]:
        machine = f"{own_platform()}:sm_{here[0]}{here[1]}" if here else own_platform()
        raise ValueError(
            f"{name} was exported for {', '.join(gpu.text for gpu in gpus)}, and {installed_builder().name} builds for "
            f"the GPU that is here, {machine}: build it there, or export it for this one"
        )


__all__ = ["BuiltEngine", "build_engines"]
