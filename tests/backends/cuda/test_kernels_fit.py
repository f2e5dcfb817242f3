"""Kernels of many programs, compiled for GPUs that nobody has timed them on, beside what those GPUs hold."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.cuda.tuning.gpu_properties import properties
from executorch.backends.cuda.tuning.kernel_configs import FRAME

from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from .compiled_kernels import kernels, programs
from .conftest import needs_compilers, without_gpu

pytestmark = [pytest.mark.builds, pytest.mark.slow, needs_compilers, without_gpu]

GPUS = ("sm_80:40GiB", "sm_86:8GiB", "sm_89:24GiB", "sm_120:32GiB")
#: As the programs that are timed: others are these in another type, or have two methods.
NAMES = sorted(
    set(programs.USUAL)
    - {"recurrent", "recurrent-fp16", "recurrent-bf16"}
    - {"two-methods-bf16", "decoder-kv-cache-bf16"}
)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", NAMES)
def test_each_can_be_launched(name: str, gpu: str) -> None:
    (described,) = GpuDescription.parse_list(gpu)
    found = kernels(programs.NAMED[name], gpu)
    assert found
    for kernel in found:
        assert kernel.blocks(properties(described)) >= 1, kernel
        # What a stack frame takes in any case. What is fused to products in float32 takes registers.
        wide = programs.NAMED[name].dtype == torch.float32 and "_tem_" in kernel.name
        assert wide or kernel.spilled <= FRAME, kernel
