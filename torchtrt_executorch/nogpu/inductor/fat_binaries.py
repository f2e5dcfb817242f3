"""Compile kernels for several compute capabilities into one fat binary.

A kernel is compiled for the lowest compute capability first. For each of the others Triton compiles the same
source, or the assembler the same PTX (:mod:`.portable_assembly`). PTX that later GPUs support is included, too, and the
driver translates it on a GPU without machine code. Triton's PTX is portable below 9.0; from there on it is for one
architecture. Below 8.0 Triton has no tensor cores: the PTX of the next capability that has them is included as well,
for later GPUs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from executorch.backends.cuda.tuning.float32_precision import CAPABILITY as TENSOR_CORES
from executorch.backends.cuda.tuning.gpu_properties import (
    GpuProperties,
)
from executorch.backends.cuda.tuning.kernels_per_gpu import KernelTargets
from executorch.backends.cuda.tuning.tile_selection import block_sizes_in

from torchtrt_executorch.nogpu.cross.toolchain import Toolchain
from torchtrt_executorch.nogpu.inductor.portable_assembly import (
    Capability,
    architecture,
    assemble,
    is_portable,
    serves,
)
from torchtrt_executorch.nogpu.thread_scope import in_scope_of_caller
from torchtrt_executorch.payloads import cuda_library, gpus

#: Triton's metadata of a kernel that its caller depends on: one caller serves all GPUs.
_CALL = ("name", "num_warps", "global_scratch_size", "profile_scratch_size")

#: Kernels for the lowest capability, each with what compiles it for another as its ``for_another``. Inductor has
#: them until the scope ends, and may save one as long; nothing here keeps one longer.
_compiled: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()


def overrides(
    gpu: GpuProperties, toolchain: Toolchain, targets: KernelTargets
) -> dict[str, Callable[..., Any]]:
    """Return the overrides that record how kernels are compiled, and save several binaries of each."""
    import triton
    from torch._inductor.codecache import CudaKernelParamCache

    compile_kernel = triton.compile
    cache: Any = CudaKernelParamCache
    save = cache.set.__func__

    def compile_noted(
        src: Any, target: Any = None, options: Any = None, **others: Any
    ) -> Any:
        def for_another(capability: Capability) -> Any:
            from triton.backends.compiler import GPUTarget

            major, minor = capability
            other = GPUTarget("cuda", major * 10 + minor, gpu.warp_size)
            if not kernel.has_tiles and serves(kernel, gpu.capability, capability):
                return assemble(kernel, other, options)
            return compile_kernel(src, target=other, options=dict(options or {}))

        kernel = compile_kernel(src, target=target, options=options, **others)
        kernel.for_another = functools.cache(for_another)
        kernel.has_tiles = block_sizes_in(getattr(src.fn, "src", "")) is not None
        with _lock:
            _compiled.add(kernel)
        return kernel

    def save_for_all(
        cls: Any,
        key: str,
        params: dict[str, Any],
        cubin: bytes,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        with _lock:
            first = next(
                compiled for compiled in _compiled if compiled.asm["cubin"] == cubin
            )
        alone = targets.alone(key)
        kernels = _for_each(first, targets.others(key), gpu)
        images = [
            ("elf", architecture(kernel), kernel.asm["cubin"]) for kernel in kernels
        ]
        if alone is None:
            unlisted = [*for_unlisted(first, gpu)]
            kernels += unlisted
            images += [
                ("ptx", architecture(kernel), kernel.asm["ptx"].encode())
                for kernel in unlisted
            ]
        # One launch is for all of them.
        shared = max(kernel.metadata.shared for kernel in kernels)
        binary = cubin if len(images) == 1 else bundled(images, toolchain)
        threads = kernels[0].metadata.num_warps * gpu.warp_size
        name = kernels[0].metadata.name
        binary = cuda_library.with_launch_record(binary, name, shared, threads)
        _check(binary, alone or gpu, targets.others(key))
        params = {**params, "shared_mem": shared}
        save(cls, key, params, binary, *args, **kwargs)

    return {
        "triton.compiler.compiler:compile": compile_noted,
        "torch._inductor.codecache:CudaKernelParamCache.set": save_for_all,
    }


def compile_for_others(kernels: list[Any], targets: KernelTargets) -> None:
    """Compile chosen kernels for the other GPUs that each is for, as many at once as there are processors.

    What doesn't compile is an error when it is saved.
    """
    pairs = [
        (kernel, other)
        for kernel in kernels
        for other in targets.others(kernel.metadata.name)
    ]
    workers = min(len(pairs), len(os.sched_getaffinity(0)))
    if workers < 2:
        return

    def compile_for(pair: tuple[Any, Capability]) -> None:
        kernel, other = pair
        with contextlib.suppress(Exception):
            kernel.for_another(other)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(in_scope_of_caller(compile_for), pairs))


def _for_each(
    first: Any, others: tuple[Capability, ...], gpu: GpuProperties
) -> list[Any]:
    """Return a kernel, and its variants for ``others`` that can be launched in the same way.

    Raises:
        RuntimeError: One can't. For a kernel without tiles, which has no other configuration, the first one's assembly
            is used if it is portable.
    """
    kernels = [first]
    for capability in others:
        other = first.for_another(capability)
        if _is_called_alike(other, first, gpu):
            kernels.append(other)
        elif first.has_tiles or not is_portable(first):
            major, minor = capability
            raise RuntimeError(
                f"the kernel {first.metadata.name} has to be called in another way, or with "
                f"more shared memory, on sm_{major}{minor} than on sm_{gpu.major}{gpu.minor}: "
                "compile for each of them by itself"
            )
    return kernels


def for_unlisted(first: Any, gpu: GpuProperties) -> Iterator[Any]:
    """Yield a kernel as its assembly is put in for GPUs that no machine code is for."""
    if not is_portable(first):
        return
    yield first
    if gpu.capability < TENSOR_CORES:
        later = (capability for capability in gpu.others if capability >= TENSOR_CORES)
        for capability in itertools.islice(later, 1):
            other = first.for_another(capability)
            if is_portable(other) and _is_called_alike(other, first, gpu):
                yield other


def _check(binary: bytes, gpu: GpuProperties, others: tuple[Capability, ...]) -> None:
    """Check a kernel's resources, by its machine code and launch, on each GPU that it is compiled for.

    Raises:
        RuntimeError: It exceeds a GPU's limits.
    """
    (kernel,) = cuda_library.kernels(binary)
    for major, minor in (gpu.capability, *others):
        for what in gpus.beyond_limits(kernel, major * 10 + minor):
            raise RuntimeError(f"the kernel {kernel.name} {what} on sm_{major}{minor}")


def _is_called_alike(kernel: Any, first: Any, gpu: GpuProperties) -> bool:
    """Whether the call of the first GPU's kernel is one of this, too, with shared memory that all have."""
    fits = kernel.metadata.shared <= gpu.shared_memory_per_block_optin
    calls = [
        [getattr(one.metadata, name, None) for name in _CALL] for one in (kernel, first)
    ]
    return fits and calls[0] == calls[1]


def bundled(images: list[tuple[str, str, bytes]], toolchain: Toolchain) -> bytes:
    """Return a fat binary with ``images``, each of a kind (``elf``, ``ptx``), for an architecture.

    Raises:
        ToolchainError: There is no ``fatbinary``.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "kernel.fatbin")
        command = [toolchain.program("fatbinary"), "-64", f"--create={output}"]
        for kind, architecture, data in images:
            file = Path(folder, f"{architecture}.{kind}")
            file.write_bytes(data)
            command.append(f"--image3=kind={kind},sm={architecture},file={file}")
        subprocess.run(command, check=True, capture_output=True)
        return output.read_bytes()
