"""Amends ``cuda_backend``: compiles for a described GPU where there is none, and without Triton."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from executorch.backends.cuda import _cross_compiler, _measured_tiles, _toolchain
from executorch.backends.cuda._described_device import (
    described_device,
)
from executorch.backends.cuda._gpu_properties import (
    GpuProperties,
    common_properties,
)

from torchtrt_executorch import cache, cuda_payload, progress, stand_ins
from torchtrt_executorch.cache import folders
from torchtrt_executorch.cache.libraries import in_memory, kept_library
from torchtrt_executorch.host import present
from torchtrt_executorch.host.described_gpu import (
    GPU_COMPILE_SPEC_KEY,
    ON_ARM_ALONE,
    agreed,
    chosen,
    described_gpus,
    own_platform,
)
from torchtrt_executorch.host.stub_libraries import StubLibraries, StubLibrary
from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.upstream import locate
from torchtrt_executorch.stand_ins.on_host import on_host

_TRITON = "executorch.backends.cuda.triton"

#: The C++ that Inductor writes calls more than these. One symbol that the linker finds is enough for
#: the library to record that it needs the driver, and all of them are found there when it is loaded.
DRIVER = StubLibraries(
    name="cuda",
    missing="There is no NVIDIA driver to link against",
    remedy="compile where there is one",
    libraries={
        "libcuda.so": StubLibrary(
            "libcuda.so.1", ("cuGetErrorString", "cuLaunchKernel", "cuModuleLoadData")
        )
    },
)


def apply(module: ModuleType) -> None:
    """Have ``CudaBackend`` compile for a described GPU where there is no other, or is told to."""
    backend: Any = module.CudaBackend
    # From 1.5 on the partitions of all methods are compiled by this one, with what collects their
    # weights, and ``preprocess`` calls it.
    by_name = "_preprocess_with_weight_collector"
    name = by_name if hasattr(backend, by_name) else "preprocess"
    preprocess = getattr(backend, name).__func__

    @functools.wraps(preprocess)
    def preprocess_described(
        cls: Any, edge_program: Any, compile_specs: Any, *collector: Any
    ) -> Any:
        gpu = described_gpu(compile_specs)

        def build() -> Any:
            own = [type(each)() for each in collector]  # what is kept is one delegate's
            with contextlib.ExitStack() as scope:
                for_gpu = "" if gpu is None else f" for sm_{gpu.major}{gpu.minor}"
                scope.enter_context(progress.step(f"compile a CUDA library{for_gpu}"))
                scope.enter_context(own_output_folder())
                if gpu is not None:
                    cross = cross_compiler(gpu)
                    found = _toolchain.find(DRIVER.build, cross)
                    for folder in _folders(gpu, cross):
                        scope.enter_context(folders.in_use(folder))
                    scope.enter_context(described_device(gpu, found))
                result = preprocess(cls, edge_program, compile_specs, *own)
            for each in own:
                each.finish()
            folders.keep_bound()
            return result

        described = gpu is not None and not present.cuda_device()
        partition = on_host(edge_program) if described else None
        files = _measured_tiles.files(gpu.capability) if gpu is not None else []
        tiles = [file["digest"] for file in files]
        result = kept_library(edge_program, compile_specs, (gpu, tiles), build)
        if partition is not None:
            digest = _digest(result, compile_specs)
            stand_ins.keep(digest, partition, share_weights=True)
        for each in collector:
            each._merge_aoti_data(result.data_store_output, None, True)
            each._results.append(result)
        return result

    setattr(backend, name, classmethod(preprocess_described))


def _folders(
    gpu: GpuProperties, cross: _cross_compiler.CrossCompiler | None
) -> Iterator[Path]:
    """What compilers keep what they make in."""
    yield folders.inductor() / f"described-{gpu.key}"
    if cross is not None:
        yield cross.program.parent


def cross_compiler(gpu: GpuProperties) -> _cross_compiler.CrossCompiler | None:
    """What compiles for the machine of ``gpu``, if it isn't one like this."""
    if gpu.platform != own_platform():
        return _cross_compiler.find(gpu.platform, lambda: cache.folder() / "cross")
    if gpu.capability in ON_ARM_ALONE and not gpu.platform.endswith("aarch64"):
        name = f"sm_{gpu.major}{gpu.minor}"
        warn(
            f"{name} is in machines with Arm processors alone, and its CUDA delegates are compiled "
            f"for {gpu.platform} here: name the machine as well, as in linux-aarch64:{name}:16GiB"
        )
    return None


@contextlib.contextmanager
def own_output_folder() -> Iterator[None]:
    """Scope in which AOTInductor writes libraries where no other program's are.

    Else the folder is named by the program's code. Two processes that lower models which differ in their
    weights alone write over what the other one links, reads and removes (``AotiBackend.preprocess``).
    """
    from torch._inductor import config

    # Kernels that Inductor keeps for the next program stay until the process ends.
    folder = tempfile.mkdtemp(dir=_process_folder(os.getpid()).name)
    with config.patch({"aot_inductor.output_path": folder}):
        yield


@functools.cache
def _process_folder(process: int) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="torchtrt-executorch-")


def import_without_triton(upstream_name: str) -> None:
    """Let ``cuda_backend`` be imported where Triton isn't installed, for its partitioner.

    It imports Triton kernels for a pass. In their place it gets a package without them; whatever
    imports a kernel itself still hears that there is no Triton.
    """
    if importlib.util.find_spec("triton") is not None or _TRITON in sys.modules:
        return
    package, module = ModuleType(_TRITON), ModuleType(f"{_TRITON}.replacement_pass")
    upstream = locate(_TRITON)
    package.__path__ = [str(Path(upstream).parent)] if upstream else []
    for holder in (package, module):
        holder.ReplaceEdgeOpWithTritonOpPass = _PassWithoutTriton  # type: ignore[attr-defined]
        sys.modules[holder.__name__] = holder


def _digest(result: Any, compile_specs: Any) -> str:
    """What the runtime looks for: the data that the payload names, each once."""
    store = result.data_store_output
    entries = dict(store.pte_data)
    for external in store.external_data.values():
        entries.update(external)
    keys = cuda_payload.read(result.processed_bytes).keys
    return stand_ins.digest(
        *(in_memory(store.buffers[entries[key].buffer_index]) for key in keys)
    )


class _PassWithoutTriton:
    """``ReplaceEdgeOpWithTritonOpPass`` where its kernels can't be had."""

    def __init__(self) -> None:
        raise _toolchain.no_triton()


def described_gpu(compile_specs: Any) -> GpuProperties | None:
    """The GPU to compile for, or what several have in common, unless it is the one that is there.

    Raises:
        ValueError: It is misdescribed, can't be compiled for, or isn't the one of ``TORCHTRT_GPU``.
    """
    named = [
        (f"CompileSpec({spec.key!r})", bytes(spec.value).decode())
        for spec in compile_specs
        if spec.key == GPU_COMPILE_SPEC_KEY
    ]
    if gpus := agreed(named) or chosen():
        return common_properties(gpus)
    if present.cuda_device():
        return None
    return dataclasses.replace(common_properties(described_gpus()), others=())
