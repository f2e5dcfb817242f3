"""Choose, save and reload one configuration per Triton kernel, without running any."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from executorch.backends.cuda.tuning import combo_kernels
from executorch.backends.cuda.tuning.cost_model import Matmul, Tile, fastest
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties
from executorch.backends.cuda.tuning.kernels_per_gpu import KernelTargets, alone_for

#: Words of a stack frame that every kernel may have. Inductor, too, takes as many for none.
FRAME = 16

#: A size of a kernel, where it is written.
_SIZE = re.compile(r"^ +(x|r0_)numel = (\d+)$", re.MULTILINE)
#: The reduction length of a kernel that reduces in one step.
_AT_ONCE = re.compile(r"^ +R0_BLOCK: tl\.constexpr = (\d+)$", re.MULTILINE)
#: Where a kernel goes through the rows of a reduction in blocks.
_PASS = re.compile(r"^ +for r0_offset in ", re.MULTILINE)
#: Length from which on a reduction's rows are long.
_LONG = 2048


def compile_and_save(
    wrapper: Any,
    gpu: GpuProperties,
    targets: KernelTargets,
    prepare: Callable[[list[Any]], None] = lambda compiled: None,
) -> None:
    """Compile the kernels of a wrapper, and hand them to Inductor as if they had been run.

    In place of ``PythonWrapperCodegen.generate_and_run_autotune_block``, which executes the
    definitions of the kernels and then calls on example tensors.

    Args:
        wrapper: Inductor's, of a library.
        gpu: Which it is for.
        targets: Kernels that are for only one of several GPUs.
        prepare: Called with Triton's kernels that were chosen, before any is saved.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    definitions = wrapper.kernel_autotune_defs.getvalue()
    names: dict[str, Any] = {}
    exec(definitions, names)
    names["async_compile"].wait(names)
    kernels: list[Any] = [
        value for value in names.values() if isinstance(value, CachingAutotuner)
    ]
    chosen = []
    for kernel in kernels:
        alone = targets.alone(kernel.fn.__name__)
        with alone_for(alone):
            kernel.precompile()
            launcher = best(kernel.launchers, alone or gpu, kernel.size_hints or {})
            chosen.append(_improved(kernel, launcher, alone or gpu))
    prepare([launcher.bin for launcher in chosen])
    for kernel, launcher in zip(kernels, chosen, strict=True):
        kernel.save_gpu_kernel("stream", launcher)


def precompile_until_best(
    precompile: Callable[..., None],
    gpu: GpuProperties,
    kernel: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Compile a kernel's configurations in the order of :func:`best`'s preference, up to the one it selects.

    In place of ``CachingAutotuner.precompile``, which compiles all of them to be timed.

    Args:
        precompile: Upstream's ``precompile``.
        gpu: Which it is for.
        kernel: ``CachingAutotuner``, with configurations or with what was compiled of them.
        args, kwargs: More of ``precompile``'s arguments.

    Raises:
        NoTritonConfigsError: None compiles.
    """
    from torch._inductor.runtime.triton_heuristics import NoTritonConfigsError

    if config := combo_kernels.config_of(kernel):
        kernel.configs = [config]
    sizes = kernel.size_hints or {}
    by_size = sorted(kernel.configs or (), key=lambda c: _size_rank(c, gpu, sizes))
    configs = [*_config_of_long_rows(kernel, gpu), *by_size]
    if len(configs) < 2 or kernel.launchers or kernel.compile_results:
        return precompile(kernel, *args, **kwargs)
    launchers: list[Any] = []
    results: list[Any] = []
    for number, config in enumerate(configs, 1):
        kernel.configs, kernel.compile_results, kernel.launchers = [config], [], []
        try:
            precompile(kernel, *args, **kwargs)
        except NoTritonConfigsError:
            if number == len(configs) and not launchers:
                raise
        launchers += kernel.launchers
        results += kernel.compile_results
        if any(_occupancy_rank(launcher, gpu) == _IDEAL for launcher in launchers):
            break
    kernel.configs, kernel.compile_results, kernel.launchers = None, results, launchers
    return None


def _config_of_long_rows(kernel: Any, gpu: GpuProperties) -> list[Any]:
    """Return the configuration of a reduction of many long rows, each contiguous; nothing for other kernels.

    Inductor's have whole rows of up to 32,768 values, or 2048, and 16 or 32 warps. The largest of those takes 1.13 times
    as long as the fastest of 7 to 16 configurations, in the geometric mean of 26 kernels on an H200 whose rows have 2048 to
    32,768 values; these 1.04 times. Where Inductor has fewer values in a block, the kernel needs registers for its other operands.
    """
    configs, sizes = list(kernel.configs or ()), kernel.size_hints or {}
    rows, length = sizes.get("x", 0), sizes.get("r0_", 0)
    if (
        not configs
        or "combo_grid_meta" in kernel.inductor_meta  # several kernels in one
        or any(set(config.kwargs) != {"XBLOCK", "R0_BLOCK"} for config in configs)
        or any(config.kwargs["XBLOCK"] > 2 for config in configs)
        or rows < 2 * gpu.multi_processor_count
        or max(config.kwargs["R0_BLOCK"] for config in configs) < _LONG
        or length < _LONG
    ):
        return []
    if length <= 2 * _LONG:
        block, warps = 2048, 4
    elif _passes(kernel) > 2:
        block, warps = 4096, 8
    elif length <= 8 * _LONG:
        block, warps = 2048, 16
    else:
        block, warps = 4096, 32
    config = copy.deepcopy(configs[0])
    config.kwargs.update(XBLOCK=1, R0_BLOCK=block)
    config.num_warps = warps
    return [config]


def _passes(kernel: Any) -> int:
    """Return how often a kernel goes through the rows of a reduction; 0 if a block has them whole."""
    return len(_PASS.findall(kernel.fn.src))


def _improved(kernel: Any, launcher: Any, gpu: GpuProperties) -> Any:
    """Return ``launcher``, or one with the fastest blocks of a reduction, or with less register spilling.

    A matmul's epilogue needs registers that weren't known when its tile was chosen. Spilling a few is enough
    to stall tensor cores. Where each value is a sum of many terms,
    Inductor's blocks have too many values for a thread.
    """
    config = copy.deepcopy(launcher.config)
    if blocks := _blocks_of_sum(kernel, launcher, gpu):
        chosen = {"XBLOCK": blocks.m, "R0_BLOCK": blocks.k}
        config.kwargs.update({name: chosen[name] for name in config.kwargs})
        config.num_warps = blocks.warps
        return _unless_spilled(kernel, config) or launcher
    if launcher.n_spills <= FRAME:
        return launcher
    # With more warps a convolution's loop gives wrong values (triton-lang/triton#1254).
    if "mma." in launcher.bin.asm["ptx"]:
        if config.num_warps > 8 or "KERNEL_W" in kernel.fn.src:
            return launcher
        config.num_warps *= 2
        return _unless_spilled(kernel, config) or launcher
    if not set(config.kwargs) <= {"XBLOCK", "YBLOCK", "ZBLOCK"}:
        return launcher
    scores = kernel.inductor_meta.get("tiling_scores") or {}
    threads = gpu.warp_size * config.num_warps
    config.kwargs.update(a_value_for_each(threads, config.kwargs, scores))
    return _unless_spilled(kernel, config) or launcher


def a_value_for_each(
    threads: int, blocks: Mapping[str, int], scores: Mapping[str, int]
) -> dict[str, int]:
    """Shrink blocks to a value for each thread, first along the dimensions with the fewest contiguous bytes.

    A sum of 36 terms takes 22 us on an H100 in blocks of (32, 4), 62 in (16, 16), 117 in (4, 32), and 140 in the (32, 32)
    that Inductor has.

    Args:
        threads: Of a block.
        blocks: By ``YBLOCK``, ``XBLOCK``.
        scores: Inductor's, by ``y``, ``x``.
    """
    smaller = dict(blocks)
    while math.prod(smaller.values()) > threads:
        wide = [name for name, size in smaller.items() if size > 4] or [*smaller]
        name = min(
            wide, key=lambda name: (scores.get(name[0].lower(), 0), -smaller[name])
        )
        smaller[name] //= 2
    return smaller


def _unless_spilled(kernel: Any, config: Any) -> Any:
    """Return a kernel compiled with other options; None if it spills registers."""
    other = kernel._precompile_config(config).make_launcher()
    return other if other.n_spills <= FRAME else None


def _blocks_of_sum(kernel: Any, launcher: Any, gpu: GpuProperties) -> Tile | None:
    """Return the fastest blocks of a reduction of many rows of 16-bit values, if the kernel is one."""
    narrow = {"*bf16", "*fp16"} & set(kernel.triton_meta["signature"].values())
    # Inductor gives a block one row where the reduced dimension is contiguous: one warp, if it is reduced in one step.
    blocks = dict(launcher.config.kwargs)
    at_once = _AT_ONCE.search(kernel.fn.src)
    summed = {"XBLOCK"} if at_once else {"XBLOCK", "R0_BLOCK"}
    if not narrow or set(blocks) != summed or blocks["XBLOCK"] != 1:
        return None
    if _passes(kernel) > 1:  # more than a sum
        return None
    # Powers of two, if sizes are to be known when it runs.
    sizes = dict(kernel.size_hints)
    sizes |= {name: int(size) for name, size in re.findall(_SIZE, kernel.fn.src)}
    if sizes["x"] < 1024:
        return None
    matmul = Matmul("sum float16", sizes["x"], 1, sizes["r0_"])
    return fastest(matmul, gpu, int(at_once[1]) if at_once else 1)


def best(launchers: list[Any], gpu: GpuProperties, sizes: Mapping[str, int]) -> Any:
    """Return one of a kernel's launchers, which differ in their configuration.

    It has the largest blocks with two per multiprocessor and no register spilling; the first of
    several. Two, so that one computes while the other waits for memory. If there are fewer blocks than
    multiprocessors, it is the one that leaves the fewest of them idle.

    Args:
        launchers: A kernel's.
        gpu: Which it is for.
        sizes: Sizes that the kernel's blocks divide, by dimension; empty if unknown.
    """

    def rank(launcher: Any) -> tuple[float, ...]:
        by_size = _size_rank(launcher.config, gpu, sizes)
        return *_occupancy_rank(launcher, gpu), *by_size

    return launchers[0] if len(launchers) == 1 else min(launchers, key=rank)


#: Nothing spilled, and two blocks at once.
_IDEAL = (0, -2)


def _occupancy_rank(launcher: Any, gpu: GpuProperties) -> tuple[int, int]:
    threads = gpu.warp_size * launcher.config.num_warps
    together = min(
        gpu.shared_memory_per_multiprocessor // (launcher.shared + 1024),
        gpu.regs_per_multiprocessor // (launcher.n_regs * threads),
    )
    return max(0, launcher.n_spills - FRAME), -min(together, 2)


def _size_rank(
    config: Any, gpu: GpuProperties, sizes: Mapping[str, int]
) -> tuple[int, int]:
    """Return a configuration's rank by what is known before compilation: blocks, and their size."""
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
    return -min(blocks, gpu.multi_processor_count), -block
