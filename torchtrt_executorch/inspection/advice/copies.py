"""Advice on device copies."""

from __future__ import annotations

from collections import Counter, deque
from typing import Iterator, Sequence

from torchtrt_executorch.inspection.advice.finding import Finding, name_of
from torchtrt_executorch.inspection.formatting import counted, short, size
from torchtrt_executorch.inspection.model.facts import HOST, Method, Transfer
from torchtrt_executorch.inspection.model.names import names
from torchtrt_executorch.inspection.model.state import first_call_alone, state

#: Kernels between two copies that are few enough to be moved.
_FEW = 3
#: Bytes that make a round trip one, and the part of a measured call.
_LARGE, _MUCH = 1024, 0.02


def planned_device_inputs(method: Method) -> Iterator[Finding]:
    """Inputs on a device, in planned memory: the caller's tensor is copied there as the host's."""
    planned = [
        place
        for place, index in enumerate(method.inputs)
        if method.values[index].device != HOST
        and method.values[index].storage == "planned"
    ]
    if planned:
        yield Finding(
            "planned-device-input",
            "warning",
            f"{name_of(method)}: input {', '.join(map(str, planned[:8]))} is taken on a device, in "
            "planned memory: ExecuTorch's C++ runtime copies the caller's tensor into it as it "
            "would on the host, and crashes (pytorch/executorch#21577).",
            "skip_h2d_for_method_inputs=True needs enable_non_cpu_memory_planning=True and "
            "memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False) beside it, in "
            "ExecutorchBackendConfig.",
            method.name,
        )


def avoidable_staging(method: Method) -> Iterator[Finding]:
    """Delegates of one device that hand values over through host memory."""
    if any(arena.device != HOST for arena in method.arenas):
        return
    times: dict[tuple[int, str], int] = Counter()
    made_there: set[tuple[int, str]] = set()
    for transfer in method.transfers:
        if transfer.staged:
            device = transfer.target if transfer.source == HOST else transfer.source
            times[transfer.value, device] += 1
            if transfer.source != HOST:
                made_there.add((transfer.value, device))
    wasted = {key: n for key, n in times.items() if n > 1}
    if not wasted:
        return
    handed = sum(key in made_there for key in wasted)
    total = sum(method.values[v].nbytes * (n - 1) for (v, _), n in wasted.items())
    yield Finding(
        "staging",
        "warning",
        f"{name_of(method)}: delegates copy {len(wasted)} value{'s' * (len(wasted) > 1)} between "
        f"host memory and their device more than once, {size(total)} in vain; {handed} of them "
        "from one delegate to the next.",
        "Give to_executorch() ExecutorchBackendConfig(enable_non_cpu_memory_planning=True). The "
        "skip_* flags do nothing without it.",
        method.name,
    )


def crossing_state(method: Method) -> Iterator[Finding]:
    """Buffers, caches mostly, that go to a device or come back in every call."""
    own, once = state(method), first_call_alone(method)
    back = {
        index: step.reads
        for step in method.instructions
        if step.kind == "kernel" and step.name.startswith("aten::copy_")
        for index in step.writes[:1]
    }
    buffer_of = {value: buffer for buffer, values in back.items() for value in values}
    transfers_of: dict[int, list[Transfer]] = {}
    for transfer in method.transfers:
        made = method.instructions[transfer.instruction].writes
        ends = transfer.value, *(() if transfer.staged else made)
        buffers = {buffer_of.get(end, end) for end in ends} & own
        if transfer.instruction not in once and transfer.nbytes >= _LARGE:
            for buffer in buffers:
                transfers_of.setdefault(buffer, []).append(transfer)
    if transfers_of:
        moved = [one for of_buffer in transfers_of.values() for one in of_buffer]
        known = names(method)
        shown = ", ".join(
            known.get(index, f"value {index}") for index in [*transfers_of][:3]
        )
        yield Finding(
            "state-crosses",
            "warning",
            f"{name_of(method)}: {counted(len(transfers_of), 'buffer')}, {shown}"
            f"{' and more' if len(transfers_of) > 3 else ''}, cross between host and device in every call, "
            f"{size(sum(one.nbytes for one in moved))}.",
            "Give to_executorch() ExecutorchBackendConfig(enable_non_cpu_memory_planning=True), with the "
            "patch device-state in force: state then lives where it is used; the export's log says of "
            "each buffer why it doesn't.",
            method.name,
            tuple(dict.fromkeys(one.instruction for one in moved)),
            staged=any(one.staged for one in moved),
        )


def round_trips(method: Method) -> Iterator[Finding]:
    """Values that leave a device for a few kernels, whose results go back to it."""
    inwards = {
        (arriving.instruction, arriving.value): arriving.target
        for arriving in method.transfers
        if arriving.source == HOST
    }
    for transfer in method.transfers:
        if transfer.target != HOST:
            continue
        step = method.instructions[transfer.instruction]
        start = (transfer.value,) if transfer.staged else step.writes
        kernels, back = _until_back(method, start, step.index, inwards)
        called = [method.instructions[kernel].name for kernel in kernels]
        few = called and len(called) <= _FEW and transfer.source in back.values()
        if few and _worth_it(method, transfer, kernels):
            value = next(v for v, device in back.items() if device == transfer.source)
            returned = method.values[value].nbytes
            plural = "s" if len(called) > 1 else ""
            yield Finding(
                "round-trip",
                "warning",
                f"{name_of(method)}: {size(transfer.nbytes)} leave {transfer.source} at instruction "
                f"{transfer.instruction} for the host kernel{plural} "
                f"{', '.join(short(name, 40) for name in called)}, and {size(returned)} go back.",
                f"Have the operator{plural} run on {transfer.source} as well: give export() a "
                "CudaPartitioner, register a TensorRT converter, or write the model without.",
                method.name,
                (transfer.instruction, *kernels),
                staged=transfer.staged,
            )


def _worth_it(method: Method, transfer: Transfer, kernels: Sequence[int]) -> bool:
    """Whether a way over the host costs more than the work of the kernels there.

    Waiting for a copy takes some tens of microseconds; of a few bytes it is what indices and sizes need
    that only the host knows. Where times were measured, they say, but of what a delegate copies for itself.
    """
    if method.times is not None and not transfer.staged:
        steps = transfer.instruction, *kernels
        return method.times.share(method.times.of(steps)) >= _MUCH
    return transfer.nbytes >= _LARGE


def _until_back(
    method: Method,
    values: tuple[int, ...],
    after: int,
    inwards: dict[tuple[int, int], str],
) -> tuple[list[int], dict[int, str]]:
    """Follow values through host kernels, a few; what of their results goes to which device."""
    pending, seen = deque(values), set(values)
    kernels: dict[int, None] = {}
    back: dict[int, str] = {}
    while pending and len(kernels) <= _FEW:
        value = pending.popleft()
        for reader in method.readers.get(value, ())[: 8 * _FEW]:
            if reader <= after:
                continue
            step = method.instructions[reader]
            if (reader, value) in inwards and value not in values:
                back[value] = inwards[reader, value]
            elif step.kind == "kernel" and "et_" not in step.name.partition("::")[0]:
                kernels[reader] = None
                pending.extend(v for v in step.writes if v not in seen)
                seen.update(step.writes)
    return sorted(kernels), back


def handed_over_by_caller(method: Method) -> Iterator[Finding]:
    """Inputs and outputs that are copied where the caller could have them on the device."""
    inputs, outputs = set(method.inputs), set(method.outputs)
    at_edge = [
        transfer
        for transfer in method.transfers
        if not transfer.staged
        and (
            (transfer.value in inputs and transfer.source == HOST)
            or outputs.intersection(method.instructions[transfer.instruction].writes)
        )
    ]
    if at_edge:
        yield Finding(
            "copies-at-the-edge",
            "note",
            f"{name_of(method)}: {len(at_edge)} cop{'ies' if len(at_edge) > 1 else 'y'} of inputs "
            f"and outputs, {size(sum(transfer.nbytes for transfer in at_edge))}.",
            "A caller that has them on the device needs none: PropagateDeviceConfig("
            "skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True) with "
            "MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False).",
            method.name,
            tuple(dict.fromkeys(transfer.instruction for transfer in at_edge)),
        )
