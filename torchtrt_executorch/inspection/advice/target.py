"""Check whether a file runs on a target: operating system, processor, GPUs and memory."""

from __future__ import annotations

from typing import Iterator, Sequence

from torchtrt_executorch.inspection.advice.finding import Finding, calls_of, name_of
from torchtrt_executorch.inspection.formatting import short, size
from torchtrt_executorch.inspection.model.facts import HOST, Delegate, Facts, Method
from torchtrt_executorch.inspection.model.memory import usage
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX
from torchtrt_executorch.nogpu.target import engine_targets
from torchtrt_executorch.nogpu.target.gpu_description import (
    VARIABLE,
    GpuDescription,
    own_platform,
)
from torchtrt_executorch.payloads import cuda_shims, gpus
from torchtrt_executorch.payloads.engine_header import TARGETS

#: The C library that most machines have by now: Ubuntu 22.04's, and so JetPack 6's.
_GLIBC = (2, 35)
#: Libraries that a Linux machine with an NVIDIA driver and ExecuTorch has.
_THERE = (
    *("ld-linux", "libc.", "libdl.", "libm.", "libpthread.", "librt."),
    *("libgcc_s.", "libgomp.", "libstdc++."),
    *("libaoti_cuda_shims", "libcuda"),
)


def unfit(
    method: Method, machine: Sequence[GpuDescription], any_machine: bool = False
) -> Iterator[Finding]:
    """Yield findings on what of a method can't run on ``machine``, which has one of several GPUs.

    Args:
        machine: Its GPUs.
        any_machine: Whether its operating system and processor don't count.
    """
    for delegate in method.delegates:
        if delegate.native is not None and not any_machine:
            yield from _library(method, delegate, machine)
    for gpu in machine:
        yield from _without_code(method, gpu, any_machine)


def elsewhere(method: Method) -> Iterator[Finding]:
    """Libraries that this machine can't load: said even where no target is named."""
    here = own_platform()
    libraries = [
        d
        for d in method.delegates
        if d.native is not None and d.native.platform != here
    ]
    if libraries:
        there = sorted(
            {
                delegate.native.platform
                for delegate in libraries
                if delegate.native is not None
            }
        )
        yield Finding(
            "platform",
            "warning" if len(there) > 1 else "note",
            f"{name_of(method)}: {len(libraries)} librar{'ies' if len(libraries) > 1 else 'y'} for "
            f"{short(' and '.join(there), 80)}, and this machine is {here}.",
            f"Ask whether it all runs there: --target {there[0]}:GPU:MEMORY.",
            method.name,
            tuple(
                call for delegate in libraries for call in calls_of(method, delegate)
            ),
        )


def too_large(facts: Facts, machine: Sequence[GpuDescription]) -> Iterator[Finding]:
    """Memory that a file wants at least on its GPU, and the smallest one hasn't."""
    smallest = min(machine, key=lambda gpu: gpu.total_memory)
    planned = sum(
        used.planned for m in facts.methods for used in usage(m) if used.device != HOST
    )
    payloads = sum(
        {
            (delegate.named_data or (m.name, delegate.index)): delegate.nbytes
            for m in facts.methods
            for delegate in m.delegates
            if delegate.device != HOST
        }.values()
    )
    if planned + payloads > smallest.total_memory:
        yield Finding(
            "memory",
            "warning",
            f"The file wants {size(planned + payloads)} of GPU memory, {size(payloads)} for engines, "
            f"libraries and weights and {size(planned)} planned, and {smallest.text} has "
            f"{size(smallest.total_memory)}.",
            "Quantize the weights, export smaller upper bounds for dynamic dimensions, or name a "
            "larger GPU.",
        )


def _library(
    method: Method, delegate: Delegate, machine: Sequence[GpuDescription]
) -> Iterator[Finding]:
    library = delegate.native
    assert library is not None
    at = method.name, calls_of(method, delegate)
    what = f"{name_of(method)}: the library of delegate {delegate.index} ({short(delegate.backend, 40)})"
    wanted = machine[0].platform
    if library.platform != wanted:
        again = ",".join(gpu.text.removeprefix(f"{wanted}:") for gpu in machine)
        yield Finding(
            "platform",
            "warning",
            f"{what} is for {short(library.platform, 40)}, and {wanted} can't load it.",
            f"Compile it for that machine: {VARIABLE}={wanted}:{again} on one without a GPU, or "
            f"CompileSpec('gpu', b'{wanted}:{again}') for CudaPartitioner anywhere.",
            *at,
        )
        return
    if library.glibc is not None and library.glibc > _GLIBC:
        version, common = (
            ".".join(map(str, release)) for release in (library.glibc, _GLIBC)
        )
        yield Finding(
            "glibc",
            "warning",
            f"{what} asks for the C library {version}, and Ubuntu 22.04 and JetPack 6 have {common}.",
            "Compile it on an older system, or for another machine than this, which zig does with "
            "the C library 2.28.",
            *at,
        )
    strange = [
        name
        for name in library.needed
        if library.platform.startswith("linux") and not name.startswith(_THERE)
    ]
    if strange:
        yield Finding(
            "library",
            "warning",
            f"{what} needs {', '.join(short(name, 60) for name in strange[:5])}, which ExecuTorch "
            "doesn't bring.",
            "Install that there, or compile the delegate without it.",
            *at,
        )
    calls = (name for name in library.undefined if name.startswith("aoti_"))
    if unknown := [name for name in calls if not cuda_shims.offered(name)]:
        yield Finding(
            "shim",
            "warning",
            f"{what} calls {', '.join(short(name, 60) for name in unknown[:5])}, which "
            "ExecuTorch's libaoti_cuda_shims doesn't offer.",
            "Leave those operators to another partitioner, or build ExecuTorch with such a function.",
            *at,
        )


def _without_code(
    method: Method, gpu: GpuDescription, any_machine: bool
) -> Iterator[Finding]:
    wanted = gpu.major * 10 + gpu.minor
    described = gpu.text.removeprefix(f"{gpu.platform}:" if any_machine else "")
    for delegate in method.delegates:
        if (
            delegate.owner not in ("tensorrt", "cuda")
            or delegate.emulated
            or delegate.damaged
        ):
            continue
        what = f"{name_of(method)}: delegate {delegate.index} ({short(delegate.backend, 40)}, {delegate.payload})"
        at = method.name, calls_of(method, delegate)
        if delegate.owner == "cuda":
            runs_on = gpus.library_runs_on
            again = f"Compile it for that GPU: {VARIABLE}={described} on a machine without one."
        elif any_machine or gpu.platform.startswith("linux"):
            runs_on = gpus.engine_runs_on
            again = _engine_again(gpu, described)
        else:
            text = f"{what} is for ExecuTorch's TensorRT delegate, which isn't for {gpu.platform}."
            again = f"Leave it to only CudaPartitioner, with {VARIABLE}={described}."
            yield Finding("platform", "warning", text, again, *at)
            continue
        if delegate.gpus is None:
            text = f"{what} doesn't say which GPUs it runs on; sm_{wanted} has to be tried."
            yield Finding("gpu-unknown", "note", text, again, *at)
        elif not runs_on(delegate.gpus, wanted):
            text = f"{what} is for {', '.join(delegate.gpus) or 'no GPU'} and can't run on sm_{wanted}."
            yield Finding("gpu", "warning", text, again, *at)
        elif not any_machine and not _loads(delegate, gpu.platform):
            text = f"{what} is by a release that isn't for {gpu.platform}."
            yield Finding("platform", "warning", text, again, *at)
        else:
            for level, text in _kernels(delegate, wanted):
                text = f"{name_of(method)}: delegate {delegate.index}: {text}"
                yield Finding("kernel", level, text, again, *at)


def _kernels(delegate: Delegate, wanted: int) -> Iterator[tuple[str, str]]:
    """Yield a level and a sentence on each kernel that can't be launched on the GPU ``wanted``.

    Of a delegate with a library for each GPU, on those of the one that is for this.
    """
    unsaid = []
    for library in delegate.kernels:
        for kernel in library:
            name = short(kernel.name, 80) or "without a name"
            image = gpus.image_on(kernel, wanted)
            if image is None:
                if len(delegate.kernels) == 1:
                    names = ", ".join(image.name for image in kernel.images)
                    yield "warning", f"kernel {name} only has code for {names}, and can't run on sm_{wanted}."
                continue
            for what in gpus.beyond_limits(kernel, wanted):
                text = f"kernel {name}, of which sm_{wanted} runs {image.name}, {what}."
                yield "warning", text
            lowest, most = gpus.shared_memory(image.gpu), gpus.shared_memory(wanted)
            if kernel.shared is None and (lowest or 0) > (most or 1 << 30):
                unsaid.append(name)
    if unsaid:
        others = f" and {len(unsaid) - 1} more" if unsaid[1:] else ""
        yield "note", (
            f"the library doesn't say how much shared memory kernel {unsaid[0]}{others} takes, and a block has "
            f"less on sm_{wanted} than on the GPU that it was compiled for."
        )


def _loads(engine: Delegate, platform: str) -> bool:
    """Whether there is what runs a plan of TensorRT-RTX; TensorRT's is for its GPU at hand."""
    name, _, version = engine.payload.partition(" ")
    return name != TENSORRT_RTX.name or engine_targets.runs_on(platform, version)


def _engine_again(gpu: GpuDescription, described: str) -> str:
    if gpus.engine_runs_on(TARGETS, gpu.major * 10 + gpu.minor):
        release = " 1.6 or later" if described.startswith("linux-aarch64") else ""
        return (
            f"Build it for that GPU, with TensorRT-RTX{release} and {VARIABLE}={described} on a "
            "machine without one."
        )
    return (
        f"TensorRT-RTX builds for {', '.join(TARGETS[:-1])} and later, on Linux; TensorRT for the GPU "
        "at hand: build it there, or leave those operators to CudaPartitioner, which gets all of "
        f"them behind TensorRTPartitioner with {VARIABLE}={described}."
    )
