"""Match compute capabilities with machine code, by NVIDIA's compatibility rules, and kernels with a GPU's limits."""

from __future__ import annotations

import re
from typing import Iterable, Iterator

from torchtrt_executorch.nogpu.target.gpu_description import (
    ON_ARM_ALONE,
    GpuDescription,
)
from torchtrt_executorch.payloads.cuda_library import Image, KernelBinary

#: Jetson and DRIVE: binaries run on these exactly, and theirs on no other GPU.
_TEGRA = {53, 62, 72, 87, 101, 110}
#: Shared memory in bytes that a block can ask for, by compute capability (CUDA programming guide, "Technical
#: Specifications per Compute Capability"); ``gpu_properties`` of the CUDA backend's tuning says the same.
SHARED_KIB = {
    **{75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227},
    **{100: 227, 103: 227, 110: 227, 120: 99, 121: 99},
}
#: Limits of all GPUs: threads of a block, registers of a block and of a thread, register allocation unit of a warp, warp size.
_THREADS, _REGISTERS, _OF_A_THREAD, _AT_ONCE, _WARP = 1024, 1 << 16, 255, 256, 32
_NAME = re.compile(r"sm_?([1-9]\d{1,2})[a-z]?")


def capability(name: str) -> int:
    """Return ``87`` for ``sm_87``.

    Raises:
        ValueError: It names no GPU architecture.
    """
    match = _NAME.fullmatch(name.strip().lower())
    if not match:
        raise ValueError(
            f"{name!r} is no GPU architecture: give its compute capability, as in sm_87"
        )
    return int(match[1])


def described(name: str) -> GpuDescription:
    """Return the GPU that ``sm_87`` names, in a machine of the kind that has it.

    Raises:
        ValueError: As :func:`capability`.
    """
    wanted = capability(name)
    on_arm = divmod(wanted, 10) in ON_ARM_ALONE
    return GpuDescription.parse(
        f"{'linux-aarch64:' if on_arm else ''}sm_{wanted}:16GiB"
    )


def library_runs_on(gpus: Iterable[str], wanted: int) -> bool:
    """Whether a library with code for ``gpus`` runs on the GPU ``wanted``.

    Machine code runs on GPUs of the same major version and no smaller minor one. From 9.0 on Triton
    compiles for one GPU alone, and Tegra's are compatible with none. What the driver translates
    (PTX), ``sm_80+``, runs on all that are later.
    """
    return any(
        _runs_on(capability(name.removesuffix("+")), name.endswith("+"), wanted)
        for name in gpus
    )


def _runs_on(gpu: int, is_ptx: bool, wanted: int) -> bool:
    exact = gpu >= 90 or {gpu, wanted} & _TEGRA
    same = not exact and gpu // 10 == wanted // 10
    return gpu == wanted or (gpu < wanted and (same or is_ptx))


def image_on(kernel: KernelBinary, wanted: int) -> Image | None:
    """Return the code of a kernel that runs on the GPU ``wanted``: machine code before PTX, the latest of either."""
    fitting = [i for i in kernel.images if _runs_on(i.gpu, i.is_ptx, wanted)]
    return max(fitting, key=lambda i: (not i.is_ptx, i.gpu), default=None)


def shared_memory(gpu: int) -> int | None:
    """Return the bytes of shared memory that a block can ask for on ``gpu``, 90 for 9.0; None if that isn't known."""
    kib = SHARED_KIB.get(gpu)
    return None if kib is None else kib << 10


def beyond_limits(kernel: KernelBinary, wanted: int) -> Iterator[str]:
    """Yield the resources of a kernel's launch that exceed the GPU ``wanted``, in words.

    Without code for that GPU nothing is known.
    """
    if (image := image_on(kernel, wanted)) is None:
        return
    most = shared_memory(wanted)
    static = max((compiled.shared for compiled in image.kernels), default=0)
    shared = static + (kernel.shared or 0)
    if most is not None and shared > most:
        yield f"takes {shared:,} bytes of shared memory, and a block has at most {most:,}"
    threads = kernel.threads or 0
    if threads > _THREADS:
        yield f"has blocks of {threads:,} threads, and there can be {_THREADS:,}"
    for compiled in image.kernels:
        if threads > compiled.threads > 0:
            yield f"is launched with {threads:,} threads, and compiled for {compiled.threads:,}"
        warps = -(-(threads or compiled.threads) // _WARP)
        registers = -(-compiled.registers * _WARP // _AT_ONCE) * _AT_ONCE * warps
        if compiled.registers > _OF_A_THREAD or registers > _REGISTERS:
            yield (
                f"takes {compiled.registers} registers in each of {threads or compiled.threads:,} threads, and a "
                f"block has {_REGISTERS:,}, a thread {_OF_A_THREAD}"
            )


def engine_runs_on(gpus: Iterable[str], wanted: int) -> bool:
    """Whether an engine that was built for ``gpus`` runs there; ``sm_121+`` is all after it."""
    for gpu in gpus:
        named = capability(gpu.removesuffix("+"))
        if gpu.endswith("+") and wanted > named:
            return True
        if named == wanted and not gpu.endswith("+"):
            return True
    return False
