"""The kernels that a program of ``tests/gpu`` has on a described GPU, without its library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties
from executorch.backends.cuda.tuning.tile_selection import Stopped, caused_by
from torch._inductor.codecache import AotCodeCompiler
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from ...loading import load_file

programs = load_file("tests/gpu/cuda_programs.py")


@dataclass(frozen=True)
class Kernel:
    """What machine code says of a kernel: registers and spilled words of a thread, bytes of shared memory."""

    name: str
    threads: int
    registers: int
    spilled: int
    shared: int

    def blocks(self, gpu: GpuProperties) -> int:
        """How many a multiprocessor holds; 0 if it can't be launched."""
        # Registers are handed out to warps, 256 at a time.
        of_warp = math.ceil(max(self.registers, 1) * 32 / 256) * 256
        if self.threads > gpu.max_threads_per_block or self.registers > 255:
            return 0
        if self.shared > gpu.shared_memory_per_block_optin:
            return 0
        return min(
            gpu.max_threads_per_multi_processor // self.threads,
            gpu.regs_per_multiprocessor // (of_warp * self.threads // 32),
            gpu.shared_memory_per_multiprocessor // (self.shared + 1024),
        )


def kernels(case: Any, gpu: str) -> list[Kernel]:
    """Those that a program, a ``cuda_models.Case``, has on a GPU; no library is compiled."""
    found: list[Kernel] = []
    save = CachingAutotuner.save_gpu_kernel

    def noted(kernel: Any, stream: Any, launcher: Any) -> Any:
        threads = 32 * launcher.config.num_warps
        words = launcher.n_regs, launcher.n_spills, launcher.shared
        found.append(Kernel(kernel.fn.__name__, threads, *words))
        return save(kernel, stream, launcher)

    def stop(*args: Any, **kwargs: Any) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CachingAutotuner, "save_gpu_kernel", noted)
        patch.setattr(AotCodeCompiler, "compile", classmethod(stop))
        with pytest.raises(Exception) as stopped:
            programs.lower(case, gpu)
    if caused_by(stopped.value, Stopped) is None:
        raise stopped.value
    return found
