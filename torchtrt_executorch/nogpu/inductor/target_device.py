"""Scope in which Inductor and Triton compile for a GPU description instead of a device.

Nothing runs on it. Queries are answered from the description, runs of kernels are skipped
(``executorch.backends.cuda.tuning.tile_selection``), and weights stay on the host (:mod:`.host_weights`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda import (
    _dependent_launch,
    _memory_pool,
    _mul_sum_decompositions,
    _tma_matmuls,
)
from executorch.backends.cuda.tuning import (
    epilogue_indices,
    float32_precision,
    runtime_k,
    tile_selection,
)
from executorch.backends.cuda.tuning.gpu_properties import (
    GpuProperties,
)
from executorch.backends.cuda.tuning.kernels_per_gpu import KernelTargets, only_gpu

from torchtrt_executorch.nogpu.cross.toolchain import Toolchain
from torchtrt_executorch.nogpu.inductor import (
    channels_last_weights,
    constant_folding,
    fat_binaries,
    host_code,
    host_weights,
    kernel_accesses,
    options,
    patch_points,
)
from torchtrt_executorch.nogpu.inductor.compile_time import (
    constant_names,
    dtype_rules,
    fusion_candidates,
)
from torchtrt_executorch.nogpu.inductor.device_guard import (
    lent_to_cuda,
)
from torchtrt_executorch.nogpu.inductor.triton_driver import (
    TargetDriver,
)
from torchtrt_executorch.nogpu.thread_scope import (
    lookup,
    overriding,
)

Overrides = dict[str, Callable[..., Any]]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


#: Environment variables that say where compilers keep things.
_CACHE, _TRITON_CACHE = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
#: Else machine code has the paths of this machine's files in it, and differs from folder to folder.
_NO_LINES = "TRITON_DISABLE_LINE_INFO"


@contextlib.contextmanager
def target_device_scope(gpu: GpuProperties, toolchain: Toolchain) -> Iterator[None]:
    """Scope within which this thread has one CUDA device, ``gpu``, to compile for.

    Only for this thread, and gone afterwards, also on failure. Other threads see what they saw
    before: no environment variable is set. What upstream changes for the whole process while it compiles
    (``torch.backends.cudnn`` and ``mkldnn``, the choice of attention kernels, warning filters, the recursion
    limit) it still does, and restores. A CPU build of PyTorch has a device guard for CUDA meanwhile
    (:mod:`.device_guard`), for which only CUDA tensors ask.

    Raises:
        NotImplementedError: The installed PyTorch or Triton lacks something that has to be overridden.
    """
    try:
        _fill_pattern_tables()
        overrides = _overrides(gpu, toolchain)
    except ModuleNotFoundError:  # Triton isn't installed
        raise
    except (AttributeError, ImportError) as error:
        raise NotImplementedError(
            f"PyTorch {torch.__version__} lacks what a CUDA delegate for a described GPU is compiled with ({error}): "
            "install a release that README.md names"
        ) from error
    required = {
        path for path, point in patch_points.PATCH_POINTS.items() if point.required
    }
    with (
        overriding(overrides, required=required & overrides.keys()),
        lent_to_cuda(),
        host_weights.released(),
    ):
        try:
            yield
        finally:
            _forget_kernels(gpu)


def _overrides(gpu: GpuProperties, toolchain: Toolchain) -> Overrides:
    targets = KernelTargets(gpu)
    return {
        **patch_points.isolated_caches(),
        **_torch_cuda(gpu),
        **_device_interface(gpu),
        **_triton(gpu),
        **toolchain.overrides(),
        **tile_selection.overrides(
            gpu,
            targets,
            functools.partial(fat_binaries.compile_for_others, targets=targets),
        ),
        **float32_precision.overrides(gpu.capability),
        **epilogue_indices.overrides(),
        **runtime_k.overrides(),
        **_memory_pool.overrides(),
        **_dependent_launch.overrides(),
        **_tma_matmuls.overrides(),
        **host_code.overrides(),
        **host_weights.overrides(),
        **channels_last_weights.overrides(),
        **kernel_accesses.overrides(),
        **fusion_candidates.overrides(),
        **constant_names.overrides(),
        **dtype_rules.overrides(),
        **options.overrides(toolchain.cross.program if toolchain.cross else None),
        **constant_folding.overrides(),
        **_mul_sum_decompositions.overrides(gpu),
        **fat_binaries.overrides(gpu, toolchain, targets),
        **_environment(gpu),
    }


def _fill_pattern_tables() -> None:
    """Trace Inductor's patterns now, for the CPU, by its own calls.

    It does so once, on example tensors on the GPU where there is one.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    pre_grad.lazy_init()
    joint_graph.lazy_init(torch.device("cpu"))
    post_grad.lazy_init()


def _torch_cuda(gpu: GpuProperties) -> Overrides:
    overrides: dict[str, Any] = {
        "is_available": True,
        "is_initialized": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": gpu.capability,
        "get_device_properties": gpu,
        "get_device_name": gpu.name,
        "get_arch_list": [f"sm_{gpu.major}{gpu.minor}"],
        "is_bf16_supported": gpu.capability >= (8, 0),
        "is_tf32_supported": gpu.capability >= (8, 0),
        "memory_allocated": 0,
        "set_device": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "synchronize": None,
        "_lazy_init": None,
        # Inductor keeps the state of random numbers while it traces.
        "get_rng_state": torch.empty(0, dtype=torch.uint8),
        "set_rng_state": None,
    }
    return {
        "torch._subclasses.fake_tensor:init_gpu_context": _always(None),
        "torch.cuda:mem_get_info": functools.partial(_memory_of, gpu),
        **{f"torch.cuda:{name}": _always(value) for name, value in overrides.items()},
    }


_queries = 0


def memory_queries() -> int:
    """Return how often a compilation has asked for the size of the target's memory, in this process."""
    return _queries


def _memory_of(gpu: GpuProperties, device: Any = None) -> tuple[int, int]:
    """Answer ``torch.cuda.mem_get_info``, by which Inductor decides how it scatters; nothing else asks for the size."""
    global _queries
    _queries += 1
    return gpu.total_memory, gpu.total_memory


def _device_interface(gpu: GpuProperties) -> Overrides:
    from torch._dynamo import device_interface

    described: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": gpu,
        "get_compute_capability": gpu.major * 10 + gpu.minor,
        "is_bf16_supported": gpu.capability >= (8, 0),
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "memory_allocated": 0,
        "set_device": None,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
        "synchronize": None,
    }
    overrides = {
        name: staticmethod(_always(value)) for name, value in described.items()
    }
    ordinary = device_interface.get_interface_for_device
    interface = ordinary("cuda")
    worker = type("Worker", (interface.Worker,), overrides)
    interface = type(
        "DescribedInterface", (interface,), {**overrides, "Worker": worker}
    )

    def interface_for(device: Any) -> Any:
        is_cuda = str(device).partition(":")[0] == "cuda"
        return interface if is_cuda else ordinary(device)

    return {"torch._dynamo.device_interface:get_interface_for_device": interface_for}


def _triton(gpu: GpuProperties) -> Overrides:
    driver = TargetDriver(gpu)
    return {
        "triton.runtime.driver:DriverConfig.active": _always(driver),
        "torch._inductor.runtime.triton_helpers:set_driver_to_gpu": _always(None),
        "triton.compiler.compiler:max_shared_mem": (
            lambda device: (only_gpu() or gpu).shared_memory_per_block_optin
        ),
        "torch._inductor.utils:is_big_gpu": _always(True),
        "torch._inductor.fx_passes.joint_graph:lazy_init": _always(None),
    }


def _environment(gpu: GpuProperties) -> Overrides:
    """Return the overrides that give compilers disk caches separate from those of a real device.

    Inductor and Triton only read the folders from environment variables, and Inductor sets some for its
    callees. Both see an environment of this thread's own.
    """
    described = _folder(gpu)
    described.mkdir(parents=True, exist_ok=True)
    ours = {
        _CACHE: str(described),
        _TRITON_CACHE: str(described / "triton" / "0"),
        _NO_LINES: "1",
    }
    environ = ChainMap(ours, os.environ)  # of which the first takes what is set
    names = {"environ": environ, "getenv": environ.get}

    def of_module(name: str) -> Any:
        return names[name] if name in names else getattr(os, name)

    getenv_bool = lookup("triton.knobs:getenv_bool")

    def is_set(name: str, default: Any) -> Any:
        return ours[name] == "1" if name in ours else getenv_bool(name, default)

    return {
        "torch._inductor.runtime.cache_dir_utils:os": of_module,
        "torch._inductor.runtime.triton_heuristics:os": of_module,
        "triton.knobs:getenv": environ.get,
        "triton.knobs:getenv_bool": is_set,
    }


def _folder(gpu: GpuProperties) -> Path:
    from torch._inductor.runtime import cache_dir_utils

    folder = os.environ.get(_CACHE) or cache_dir_utils.default_cache_dir()
    return Path(folder, f"described-{gpu.key}").absolute()


def _forget_kernels(gpu: GpuProperties) -> None:
    """Remove the kernels for ``gpu``, which nothing here can run, from the modules that Inductor has loaded.

    It and Triton would keep each one's module, with machine code and source, until the process ends. A program with the
    same kernel finds it on disk.
    """
    from torch._inductor.codecache import PyCodeCache

    functions = lookup("triton.runtime.jit:_triton_jit_function_registry") or {}
    folder = f"{_folder(gpu)}{os.sep}"
    for module in list(PyCodeCache.modules):
        path = module.__file__ or ""
        if path.startswith(folder):
            PyCodeCache.modules.remove(module)
            PyCodeCache.modules_no_attr.pop(path, None)
            sys.modules.pop(module.__name__, None)
            for name in [n for n in functions if n.startswith(f"{module.__name__}:")]:
                functions.pop(name, None)
