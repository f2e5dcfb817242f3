"""Triton driver for a GPU description: names the target, and neither loads nor launches kernels."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from executorch.backends.cuda.tuning.gpu_properties import (
    GpuProperties,
)

from torchtrt_executorch.payloads import cubin


class _Utils:
    """Device properties that Triton's compiled kernels query when they are loaded."""

    def __init__(self, gpu: GpuProperties) -> None:
        self._gpu = gpu

    def get_device_properties(self, device: int) -> dict[str, int]:
        gpu = self._gpu
        return {
            "max_shared_mem": gpu.shared_memory_per_block_optin,
            "max_num_regs": gpu.regs_per_multiprocessor,
            "multiprocessor_count": gpu.multi_processor_count,
            "warpSize": gpu.warp_size,
            "sm_clock_rate": gpu.clock_rate,
            "mem_clock_rate": gpu.memory_clock_rate,
            "mem_bus_width": gpu.memory_bus_width,
        }

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[None, int, int, int, int]:
        """Return module, function, registers, spills and threads; the first two are no handles.

        Without a module a kernel that is let go of, perhaps when this driver is gone, has nothing to unload.
        """
        compiled = cubin.kernel(kernel, name)
        threads = self._gpu.max_threads_per_block
        return None, 1, compiled.registers, compiled.frame // 4, threads


class TargetDriver:
    """Stands in for ``triton.runtime.driver.active``."""

    def __init__(self, gpu: GpuProperties) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", gpu.major * 10 + gpu.minor, gpu.warp_size)
        self.utils = _Utils(gpu)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return what would launch a kernel, to be made but not called."""

        def launch(*args: Any, **kwargs: Any) -> NoReturn:
            raise RuntimeError(
                "a kernel for a described GPU was launched, and there is none"
            )

        return launch

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda
