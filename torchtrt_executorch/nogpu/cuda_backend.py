"""Compile CUDA delegates for the target GPU, take compiled ones from the cache, and keep stand-ins of them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda import _memory_pool
from executorch.backends.cuda.tuning import cost_model, float32_precision
from executorch.backends.cuda.tuning.gpu_properties import (
    GpuProperties,
    common_properties,
)

from torchtrt_executorch import cache, progress
from torchtrt_executorch.cache import folders
from torchtrt_executorch.cache.libraries import kept_library
from torchtrt_executorch.cache.store import sha256_of
from torchtrt_executorch.heap import trim_heap
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.cross import compiler, toolchain
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.inductor.target_device import target_device_scope
from torchtrt_executorch.nogpu.stand_ins.on_host import on_host
from torchtrt_executorch.nogpu.stubs.stub_libraries import StubLibraries, StubLibrary
from torchtrt_executorch.nogpu.target.gpu_description import (
    GPU_COMPILE_SPEC_KEY,
    ON_ARM_ALONE,
    agreed,
    chosen,
    configured_gpus,
    own_platform,
)
from torchtrt_executorch.nogpu.thread_scope import overriding
from torchtrt_executorch.overlay import warn
from torchtrt_executorch.payloads import cuda_payload

#: Names files of tile measurements that go before ours, as ``torchtrt-executorch tune`` writes them.
TUNED = "TORCHTRT_TUNED"

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


def for_target_gpu(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``CudaBackend``'s compilation of a partition: it is for the target GPU, and cached.

    Args:
        preprocess: Takes the class, the partition, its compile specs and, from ExecuTorch 1.5 on, what
            collects the weights of all partitions.
    """

    @functools.wraps(preprocess)
    def preprocess_for_target(
        cls: Any, edge_program: Any, compile_specs: Any, *collector: Any
    ) -> Any:
        gpu = target_gpu(compile_specs)

        def build() -> Any:
            trim_heap()  # of the partition before, whose packed weights are in files now
            own = [
                type(output)() for output in collector
            ]  # the cache has one delegate's
            with contextlib.ExitStack() as scope:
                for_gpu = "" if gpu is None else f" for sm_{gpu.major}{gpu.minor}"
                scope.enter_context(progress.step(f"compile a CUDA library{for_gpu}"))
                scope.enter_context(own_output_folder())
                if gpu is not None:
                    cross = cross_compiler(gpu)
                    tools = toolchain.find(DRIVER.build, cross)
                    for folder in _folders(gpu, cross):
                        scope.enter_context(folders.in_use(folder))
                    scope.enter_context(target_device_scope(gpu, tools))
                else:
                    capability = torch.cuda.get_device_capability()
                    overrides = float32_precision.overrides(capability)
                    overrides |= _memory_pool.overrides()
                    scope.enter_context(overriding(overrides))
                result = preprocess(cls, edge_program, compile_specs, *own)
            for output in own:
                output.finish()
            folders.keep_bound()
            return result

        without_gpu = gpu is not None and not present.cuda_device()
        partition = on_host(edge_program) if without_gpu else None
        files = cost_model.files(gpu) if gpu is not None else []
        tiles = [file["digest"] for file in files]
        result = kept_library(edge_program, compile_specs, gpu, build, tiles)
        if partition is not None:
            digest = _digest(result, compile_specs)
            stand_ins.keep(digest, partition, share_weights=True)
        for output in collector:
            output._merge_aoti_data(result.data_store_output, None, True)
            output._results.append(result)
        return result

    return preprocess_for_target


def copy_sharing_weights(program: Any, backend_id: str) -> Any:
    """Return a copy of ``program`` for a backend to change.

    ``CudaBackend`` writes to no weight where there is no GPU to move them to, and the copy shares them.
    """
    memo: dict[int, Any] = {}
    if backend_id == "CudaBackend" and not present.cuda_device():
        tensors = (*program.state_dict.values(), *program.constants.values())
        memo = {id(t): t for t in tensors if isinstance(t, torch.Tensor)}
    return copy.deepcopy(program, memo)


def _folders(
    gpu: GpuProperties, cross: compiler.CrossCompiler | None
) -> Iterator[Path]:
    """Yield the folders in which compilers keep what they make."""
    yield folders.inductor() / f"described-{gpu.key}"
    if cross is not None:
        yield cross.program.parent


def cross_compiler(gpu: GpuProperties) -> compiler.CrossCompiler | None:
    """Return the compiler for the machine of ``gpu``; None if it is one like this."""
    if gpu.platform != own_platform():
        return compiler.find(gpu.platform, lambda: cache.folder() / "cross")
    if gpu.capability in ON_ARM_ALONE and not gpu.platform.endswith("aarch64"):
        name = f"sm_{gpu.major}{gpu.minor}"
        warn(
            f"{name} is only in machines with Arm processors, and its CUDA delegates are compiled "
            f"for {gpu.platform} here: name the machine as well, as in linux-aarch64:{name}:16GiB"
        )
    return None


@contextlib.contextmanager
def own_output_folder() -> Iterator[None]:
    """Scope in which AOTInductor writes libraries to a folder of their own.

    By default the folder is named by the program's code. Two processes that lower models which only differ in
    their weights would overwrite each other's files (``AotiBackend.preprocess``).
    """
    from torch._inductor import config

    # Kernels that Inductor keeps for the next program stay until the process ends.
    folder = tempfile.mkdtemp(dir=cache.process_folder())
    with config.patch({"aot_inductor.output_path": folder}):
        yield


def _digest(result: Any, compile_specs: Any) -> str:
    """Return the digest that the runtime looks for: of the digests of the data that the payload names, each once."""
    store = result.data_store_output
    entries = dict(store.pte_data)
    for external in store.external_data.values():
        entries.update(external)
    keys = cuda_payload.read(result.processed_bytes).keys
    return stand_ins.digest_of_digests(
        *(sha256_of(store.buffers[entries[key].buffer_index]) for key in keys)
    )


def target_gpu(compile_specs: Any) -> GpuProperties | None:
    """Return the GPU to compile for, or what several have in common; None for the one that is there.

    Raises:
        ValueError: It is no description of a GPU, can't be compiled for, or isn't the one of ``TORCHTRT_GPU``.
    """
    named = [
        (f"CompileSpec({spec.key!r})", bytes(spec.value).decode())
        for spec in compile_specs
        if spec.key == GPU_COMPILE_SPEC_KEY
    ]
    if gpus := agreed(named) or chosen():
        gpu = common_properties(gpus)
    elif present.cuda_device():
        return None
    else:
        gpu = common_properties(configured_gpus())
        gpu = dataclasses.replace(gpu, others=(), per_gpu=())
    per_gpu = tuple(dataclasses.replace(g, measurements=_tuned()) for g in gpu.per_gpu)
    return dataclasses.replace(gpu, measurements=_tuned(), per_gpu=per_gpu)


def _tuned() -> tuple[Path, ...]:
    names = os.environ.get(TUNED, "").split(os.pathsep)
    return tuple(map(Path, filter(None, names)))
