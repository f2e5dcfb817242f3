"""Advice on delegates: placement, runtimes, and operators outside of them."""

from __future__ import annotations

from collections import Counter
from typing import Iterator

from torchtrt_executorch.inspection.advice.finding import Finding, calls_of, name_of
from torchtrt_executorch.inspection.formatting import counted, short
from torchtrt_executorch.inspection.model.facts import HOST, Method


def emulated(method: Method) -> Iterator[Finding]:
    engines = [delegate for delegate in method.delegates if delegate.emulated]
    if engines:
        yield Finding(
            "emulated",
            "warning",
            f"{name_of(method)}: {len(engines)} engine{'s are' if len(engines) > 1 else ' is'} EMULATED, "
            "and no TensorRT runs them.",
            "Build them on the machine that is to run it, by torchtrt-executorch build; or export without "
            "emulated_engines() and TORCHTRT_EMULATE, where TensorRT can build engines.",
            method.name,
            tuple(call for engine in engines for call in calls_of(method, engine)),
        )


def damaged(method: Method) -> Iterator[Finding]:
    for delegate in method.delegates:
        if delegate.damaged and not delegate.missing:
            yield Finding(
                "damaged",
                "warning",
                f"{name_of(method)}: the payload of delegate {delegate.index} "
                f"({short(delegate.backend, 40)}) can't be read: {short(delegate.damaged, 200)}.",
                "Export the program again.",
                method.name,
                calls_of(method, delegate),
            )


def unsound(method: Method) -> Iterator[Finding]:
    for index, text in method.faults:
        name = short(method.instructions[index].name, 60)
        yield Finding(
            "unsound",
            "warning",
            f"{name_of(method)}: instruction {index} ({name}): {short(text, 400)}.",
            "Export the program with the patches propagate-device-pass and device-copies in force: they "
            "label what lives on a device, and copy what goes from one side to the other.",
            method.name,
            (index,),
        )


#: Advice on how to avoid an operator, by its name.
_WITHOUT = {
    "aten::histc.out": " A mixture of experts of transformers' does without it, loaded with "
    'experts_implementation="batched_mm".',
}


def no_kernel(method: Method) -> Iterator[Finding]:
    """Yield the operators without a kernel: a warning for ATen's, a note for others, which a library may have."""
    calls: dict[str, list[int]] = {}
    for index in method.without_kernel:
        calls.setdefault(method.instructions[index].name, []).append(index)
    for name, indices in calls.items():
        yield Finding(
            "no-kernel",
            "warning" if name.startswith("aten::") else "note",
            f"{name_of(method)}: ExecuTorch has no kernel for {short(name, 80)}, and fails where the "
            "method is loaded.",
            "Give it to a delegate, write the model without it, or link a kernel of yours."
            f"{_WITHOUT.get(name, '')}",
            method.name,
            tuple(indices),
        )


def divided_engines(method: Method) -> Iterator[Finding]:
    """Engines that follow each other with nothing between that either needs from elsewhere."""
    before: dict[str, tuple[int, set[int], set[int]]] = {}
    for step in method.instructions:
        engine = step.delegate is not None and (
            method.delegates[step.delegate].owner == "tensorrt"
        )
        for device, (_, own, others) in before.items():
            if engine and step.device == device:
                continue
            if step.kind in ("copy", "move") and own.intersection(step.reads):
                own.update(step.writes)
            elif (own | others).intersection(step.reads):
                others.update(step.writes)
                own.difference_update(step.writes)
        if not engine:
            continue
        if step.device in before:
            at, own, others = before[step.device]
            if own.intersection(step.reads) and not others.intersection(step.reads):
                yield Finding(
                    "divided-engine",
                    "warning",
                    f"{name_of(method)}: the engines at instructions {at} and {step.index} follow "
                    f"each other on {step.device} with nothing between: they could be one.",
                    "Compile what they hold as one module, with a smaller min_block_size or "
                    "use_fast_partitioner=False.",
                    method.name,
                    (at, step.index),
                )
        before[step.device] = step.index, set(step.writes), set()


def lone_devices(method: Method) -> Iterator[Finding]:
    on = Counter(
        delegate.device for delegate in method.delegates if delegate.device != HOST
    )
    for device, count in on.items():
        if count == 1 and max(on.values()) > 1:
            single = next(
                candidate
                for candidate in method.delegates
                if candidate.device == device
            )
            most, _ = on.most_common(1)[0]
            yield Finding(
                "lone-device",
                "warning",
                f"{name_of(method)}: delegate {single.index} ({short(single.backend, 40)}) is the only "
                f"one on {device}, and {on[most]} are on {most}.",
                f"If that isn't meant, compile it for {most}: device=torch_tensorrt.Device(gpu_id="
                "...) for engines, CompileSpec('target_device', ...) for partitioners.",
                method.name,
                calls_of(method, single),
            )


def second_gpu(method: Method) -> Iterator[Finding]:
    """Yield a warning of CUDA libraries for a GPU other than the first: ExecuTorch's CudaBackend ignores the index."""
    delegates = [
        d
        for d in method.delegates
        if d.owner == "cuda" and d.device not in (HOST, "cuda:0")
    ]
    if delegates:
        devices = ", ".join(sorted({delegate.device for delegate in delegates}))
        yield Finding(
            "second-gpu",
            "warning",
            f"{name_of(method)}: {counted(len(delegates), 'CUDA delegate')} for {devices}: ExecuTorch's "
            "CudaBackend loads each library on the GPU that is current then, and runs it on the stream of "
            "cuda:0, whatever its target_device is.",
            "Run the program by torchtrt_executorch.runtime, which has each on its GPU, or make these engines: "
            "Torch-TensorRT's delegate runs an engine on its own GPU.",
            method.name,
            tuple(
                call for delegate in delegates for call in calls_of(method, delegate)
            ),
        )


#: Part of a call from which on an operator of the host is said to be slow.
_SLOW = 0.1


def slow_on_host(method: Method) -> Iterator[Finding]:
    """Operators of the host that take much of a measured call."""
    if method.times is None:
        return
    calls: dict[str, list[int]] = {}
    for step in method.instructions:
        if step.kind == "kernel":
            calls.setdefault(step.name, []).append(step.index)
    for name, indices in calls.items():
        if method.times.share(method.times.of(indices)) >= _SLOW:
            yield Finding(
                "slow-on-host",
                "note",
                f"{name_of(method)}: the host runs {short(name, 60)} {counted(len(indices), 'time')}.",
                "Give it to a delegate: CudaPartitioner or XnnpackPartitioner behind TensorRT's, if one "
                "takes it.",
                method.name,
                tuple(indices),
            )
