"""Kernels of many programs, compiled for GPUs that nobody has timed them on, beside what those GPUs hold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties, properties
from executorch.backends.cuda.tuning.kernel_configs import FRAME
from executorch.backends.cuda.tuning.tile_selection import Stopped, caused_by
from torch._inductor.codecache import AotCodeCompiler
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from ...loading import load_file
from .conftest import needs_compilers

pytestmark = [
    pytest.mark.builds,
    pytest.mark.slow,
    needs_compilers,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
]

programs = load_file("tests/gpu/cuda_programs.py")
GPUS = ("sm_80:40GiB", "sm_86:8GiB", "sm_89:24GiB", "sm_120:32GiB")
#: As the programs that are timed: others are these in another type, or have two methods.
NAMES = sorted(
    set(programs.USUAL)
    - {"recurrent", "recurrent-fp16", "recurrent-bf16"}
    - {"two-methods-bf16", "decoder-kv-cache-bf16"}
)


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


def kernels(name: str, gpu: str) -> list[Kernel]:
    """Those that a program has on a GPU; no library is compiled."""
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
            programs.lower(programs.NAMED[name], gpu)
    if caused_by(stopped.value, Stopped) is None:
        raise stopped.value
    return found


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_launched(name: str, gpu: str) -> None:
    (described,) = GpuDescription.parse_list(gpu)
    found = kernels(name, gpu)
    assert found
    for kernel in found:
        assert kernel.blocks(properties(described)) >= 1, kernel
        # What a stack frame takes in any case. What is fused to products in float32 takes registers.
        wide = programs.NAMED[name].dtype == torch.float32 and "_tem_" in kernel.name
        assert wide or kernel.spilled <= FRAME, kernel
