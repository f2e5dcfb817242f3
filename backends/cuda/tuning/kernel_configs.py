"""Choose, save and reload one configuration per Triton kernel, without running any."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from typing import Any

from executorch.backends.cuda.tuning.cost_model import Product, Tile, fastest
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties

#: Words of a stack frame that every kernel may have. Inductor, too, takes as many for none.
FRAME = 16

#: A size of a kernel, where it is written.
_SIZE = re.compile(r"^ +(x|r0_)numel = (\d+)$", re.MULTILINE)


def compile_and_save(wrapper: Any, gpu: GpuProperties) -> None:
    """Compile the kernels of a wrapper, and hand them to Inductor as if they had been run.

    In place of ``PythonWrapperCodegen.generate_and_run_autotune_block``, which executes the
    definitions of the kernels and then calls on example tensors.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    definitions = wrapper.kernel_autotune_defs.getvalue()
    names: dict[str, Any] = {}
    exec(definitions, names)
    names["async_compile"].wait(names)
    kernels: list[Any] = [
        value for value in names.values() if isinstance(value, CachingAutotuner)
    ]
    for kernel in kernels:
        kernel.precompile()
        found = best(kernel.launchers, gpu, kernel.size_hints or {})
        chosen = _improved(kernel, found, gpu)
        kernel.save_gpu_kernel("stream", chosen)


def _improved(kernel: Any, launcher: Any, gpu: GpuProperties) -> Any:
    """Return ``launcher``, or one with the fastest blocks of a sum or with twice the warps, if it doesn't spill.

    What is fused behind a product takes registers that nothing knew of when its tile was chosen. A few
    that are missing are enough to stop tensor cores from working ahead.
    """
    config = copy.deepcopy(launcher.config)
    if blocks := _blocks_of_sum(kernel, launcher, gpu):
        config.kwargs.update(XBLOCK=blocks.m, R0_BLOCK=blocks.k)
        config.num_warps = blocks.warps
    # With more warps a convolution's loop gives wrong values (triton-lang/triton#1254).
    elif (
        launcher.n_spills > FRAME
        and config.num_warps <= 8
        and "mma." in launcher.bin.asm["ptx"]
        and "KERNEL_W" not in kernel.fn.src
    ):
        config.num_warps *= 2
    else:
        return launcher
    other = kernel._precompile_config(config).make_launcher()
    return other if other.n_spills <= FRAME else launcher


def _blocks_of_sum(kernel: Any, launcher: Any, gpu: GpuProperties) -> Tile | None:
    """Return the fastest blocks of a sum over many rows of 16 bits, if the kernel is one."""
    narrow = {"*bf16", "*fp16"} & set(kernel.triton_meta["signature"].values())
    # Inductor gives a row to a block where what is summed lies beside one another.
    blocks = dict(launcher.config.kwargs)
    if not narrow or set(blocks) != {"XBLOCK", "R0_BLOCK"} or blocks["XBLOCK"] != 1:
        return None
    # Powers of two, if sizes are to be known when it runs.
    sizes = dict(kernel.size_hints)
    sizes |= {name: int(size) for name, size in re.findall(_SIZE, kernel.fn.src)}
    if sizes["x"] < 1024:
        return None
    return fastest(Product("sum float16", sizes["x"], 1, sizes["r0_"]), gpu)


def best(launchers: list[Any], gpu: GpuProperties, sizes: Mapping[str, int]) -> Any:
    """Return one of a kernel's launchers, which differ in their configuration.

    The largest blocks of which a multiprocessor holds two and no thread spills; the first of
    several. Two, so that one computes while another waits. Of fewer blocks than there are
    multiprocessors, those that leave the fewest of them idle.

    Args:
        launchers: A kernel's.
        gpu: Which it is for.
        sizes: What the kernel's blocks divide among them, by dimension; none if that isn't known.
    """

    def rank(launcher: Any) -> tuple[float, ...]:
        config = launcher.config
        threads = gpu.warp_size * config.num_warps
        together = min(
            gpu.shared_memory_per_multiprocessor // (launcher.shared + 1024),
            gpu.regs_per_multiprocessor // (launcher.n_regs * threads),
        )
        block = math.prod(
            value
            for key, value in config.kwargs.items()
            if "BLOCK" in key and isinstance(value, int)
        )
        blocks = math.prod(
            math.ceil(size / config.kwargs.get(f"{name.upper()}BLOCK", size))
            for name, size in sizes.items()
            if not name.startswith("r")
        )
        busy = min(blocks, gpu.multi_processor_count)
        spilled = max(0, launcher.n_spills - FRAME)
        return spilled, -min(together, 2), -busy, -block

    return launchers[0] if len(launchers) == 1 else min(launchers, key=rank)
