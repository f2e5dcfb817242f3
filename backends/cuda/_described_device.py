"""A CUDA device by description: what Inductor and Triton get told of it, within a scope.

Nothing runs on it. What is asked is answered, what would run a kernel is left out
(:mod:`._unmeasured_kernels`), and weights stay on the host (:mod:`._host_weights`).
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda import (
    _constant_folding,
    _fat_binaries,
    _host_weights,
    _options,
    _sums,
    _unmeasured_kernels,
)
from executorch.backends.cuda._device_guard import (
    lent_to_cuda,
)
from executorch.backends.cuda._gpu_properties import (
    GpuProperties,
)
from executorch.backends.cuda._thread_scope import (
    answering,
    lookup,
)
from executorch.backends.cuda._toolchain import Toolchain
from executorch.backends.cuda._triton_driver import (
    DescribedDriver,
)

Answers = dict[str, Callable[..., Any]]


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


#: They are filled before, since they would be with tensors on the device.
_PATTERN_TABLES: Answers = {
    f"torch._inductor.fx_passes.{module}:lazy_init": _always(None)
    for module in ("pre_grad", "joint_graph", "post_grad")
}

#: Functions that remember what they were told of the device. Within a scope each has a memory of
#: its own: what they know of no device doesn't reach in, and what they learn doesn't get out.
REMEMBERING = (
    "torch._dynamo.debug_utils:_cuda_system_info_comment",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.utils:get_max_num_sms",
    "torch._inductor.utils:get_gpu_type",
    "torch._inductor.utils:get_device_tflops",
    "torch._inductor.utils:get_gpu_dram_gbps",
    "torch._inductor.utils:get_backend_num_stages",
    "torch._inductor.utils:using_b200",
    "torch._inductor.utils:_triton_supported_fp8_dtypes",
    "torch._inductor.codecache:CacheBase.get_system",
    "torch._inductor.comm_analysis:get_gpu_type",
    "torch._inductor.kernel.mm:_is_sm7x_or_older_gpu",
    "torch.utils._triton:_device_supports_tma",
    "torch.utils._triton:has_triton",
    "torch.utils._triton:has_triton_experimental_host_tma",
    "torch.utils._triton:has_triton_tensor_descriptor_host_tma",
    "torch.utils._triton:has_triton_tma",
    "torch.utils._triton:has_triton_tma_device",
    "torch.utils._triton:has_triton_stable_tma_api",
    "torch.utils._triton:has_datacenter_blackwell_tma_device",
    "torch.utils._triton:triton_backend",
    "torch.utils._triton:triton_hash_with_backend",
    "triton.compiler.compiler:max_shared_mem",
)

#: Without these a compiler looks for the device itself.
_REQUIRED = {
    "torch._dynamo.device_interface:CudaInterface.get_device_properties",
    "torch._inductor:aot_compile",
    "torch._inductor.codecache:AotCodeCompiler.compile",
    "torch._inductor.codecache:CudaKernelParamCache.set",
    "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_and_run_autotune_block",
    "torch._inductor.fx_passes.joint_graph:lazy_init",
    "torch._inductor.runtime.cache_dir_utils:cache_dir",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.runtime.triton_helpers:set_driver_to_gpu",
    "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__",
    "torch._inductor.utils:clone_preserve_strides",
    "torch._inductor.utils:is_big_gpu",
    "torch._inductor.utils:is_same_tensor",
    "torch.cuda:get_device_properties",
    "torch.export.passes:move_to_device_pass",
    "torch.utils.cpp_extension:_join_cuda_home",
    "triton.compiler.compiler:compile",
    "triton.runtime.driver:DriverConfig.active",
}

#: Environment variables that compilers set for themselves, by what they were told.
_LEFT_BEHIND = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
#: Else machine code has the paths of this machine's files in it, and differs from folder to folder.
_NO_LINES = "TRITON_DISABLE_LINE_INFO"


@contextlib.contextmanager
def described_device(gpu: GpuProperties, toolchain: Toolchain) -> Iterator[None]:
    """Scope within which this thread has one CUDA device, ``gpu``, to compile for.

    In force for this thread alone, and gone afterwards, also on failure.

    Raises:
        NotImplementedError: The installed PyTorch or Triton lacks something that has to be answered.
    """
    _fill_pattern_tables()
    environment = {name: os.environ.get(name) for name in (*_LEFT_BEHIND, _NO_LINES)}
    answers = {
        **_PATTERN_TABLES,
        **_torch_cuda(gpu),
        **_device_interface(gpu),
        **_triton(gpu),
        **_caches(gpu),
        **toolchain.answers(),
        **_unmeasured_kernels.answers(gpu),
        **_host_weights.answers(),
        **_options.answers(cross=toolchain.cross is not None),
        **_constant_folding.answers(),
        **_sums.answers(),
        **_fat_binaries.answers(gpu, toolchain),
    }
    os.environ[_NO_LINES] = "1"
    try:
        with (
            answering(answers, required=_REQUIRED),
            lent_to_cuda(),
            _unmeasured_kernels.raw_stream_name(),
        ):
            yield
    finally:
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _fill_pattern_tables() -> None:
    """Let Inductor trace its patterns now, for the CPU, by the calls that it makes itself.

    It does so once, on example tensors on the GPU where there is one.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    pre_grad.lazy_init()
    joint_graph.lazy_init(torch.device("cpu"))
    post_grad.lazy_init()


def _torch_cuda(gpu: GpuProperties) -> Answers:
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": gpu.capability,
        "get_device_properties": gpu,
        "get_device_name": gpu.name,
        "get_arch_list": [f"sm_{gpu.major}{gpu.minor}"],
        "mem_get_info": (gpu.total_memory, gpu.total_memory),
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
        # Before 2.13 fake tensors ask whether there is a device, and put one on it.
        "torch._subclasses.fake_tensor:init_gpu_context": _always(None),
        **{f"torch.cuda:{name}": _always(value) for name, value in answers.items()},
    }


def _device_interface(gpu: GpuProperties) -> Answers:
    answers: dict[str, Any] = {
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
        "Worker.current_device": 0,
        "Worker.get_device_properties": gpu,
    }
    interface = "torch._dynamo.device_interface:CudaInterface"
    return {f"{interface}.{name}": _always(value) for name, value in answers.items()}


def _triton(gpu: GpuProperties) -> Answers:
    driver = DescribedDriver(gpu)
    return {
        "triton.runtime.driver:DriverConfig.active": _always(driver),
        # Every generated kernel asks for the GPU's own driver first.
        "torch._inductor.runtime.triton_helpers:set_driver_to_gpu": _always(None),
        # Upstream leaves GEMMs to ATen on small GPUs, and the backend has no kernels of ATen's.
        "torch._inductor.utils:is_big_gpu": _always(True),
    }


def _caches(gpu: GpuProperties) -> Answers:
    """What is kept on disk or remembered, apart from what a real device would leave there."""
    from torch._inductor.runtime import cache_dir_utils

    ordinary = Path(cache_dir_utils.cache_dir())
    described = ordinary / f"described-{gpu.key}"
    described.mkdir(exist_ok=True)
    answers: Answers = {
        "torch._inductor.runtime.cache_dir_utils:cache_dir": _always(str(described))
    }
    for path in REMEMBERING:
        function = lookup(path)
        if function is not None:
            answers[path] = functools.cache(function.__wrapped__)
    return answers
