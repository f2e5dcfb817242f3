"""Fuse a decode step's small elementwise kernels and its reductions of short rows into one launch.

Inductor's combo kernels fuse independent kernels, but elementwise kernels and reductions separately. In a decoder's layer
the new value is written to the cache in the launch that normalizes and rotates key and query: a launch less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Elements of all rows of a reduction that are little beside a launch, and blocks of an elementwise kernel.
_FEW_ELEMENTS, _FEW_BLOCKS = 1 << 16, 512
#: Elements of a block's rows, and those that a warp has: fewer are sooner done. Rotating and normalizing query and key takes an H200 1.4 us of
#: each layer of Qwen3 0.6B so, 1.7 with 128 to a warp, and 2.1 with 256.
_OF_A_BLOCK, _OF_A_WARP = 512, 64
_MOST_ROWS, _MOST_WARPS = 8, 8
#: Inductor's, by which nodes of a combo kernel are partitioned into several. Another one may be set there.
_PARTITION = "_custom_combo_kernel_horizontal_partition_algorithm"
_MODULE = "torch._inductor.codegen.triton_combo_kernel"
#: The row length of a part of a kernel whose blocks have whole rows.
_ROWS = re.compile(r"^ +R0_BLOCK_\d+: tl\.constexpr = (\d+)$", re.MULTILINE)


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override of Inductor's partitioning of combo kernels."""
    from torch._inductor.codegen import triton_combo_kernel

    partition = getattr(triton_combo_kernel, _PARTITION, None)
    if partition is None:
        return {}

    def with_small_ones_joined(
        nodes: list[Any], scheduling: Any, infos: Mapping[Any, Any]
    ) -> list[list[Any]]:
        parts = partition(nodes, scheduling, infos)
        rows = [n for n in nodes if _has_short_rows(infos[n])]
        longest = max((int(infos[n].rnumel) for n in rows), default=1)
        block, _ = _rows_and_warps(longest)
        single = [n for n in nodes if _elements(infos[n], False) <= block * _FEW_BLOCKS]
        if not rows or not single:
            return parts
        joined = {*rows, *single}
        others = [[n for n in part if n not in joined] for part in parts]
        return [[n for n in nodes if n in joined], *filter(None, others)]

    return {f"{_MODULE}:{_PARTITION}": with_small_ones_joined}


def _has_short_rows(info: Any) -> bool:
    """Whether a kernel reduces rows that a block has whole, few of them. Of ``info``, Inductor's ``NodeInfo``."""
    return _elements(info, True) <= _FEW_ELEMENTS


def _elements(info: Any, reduces: bool) -> float:
    """Return how many elements a kernel reads; infinitely many if it is of another kind, has two dimensions, or no size."""
    known = all(
        isinstance(n, int) or getattr(n, "is_Integer", False)
        for n in (info.numel, info.rnumel)
    )
    alike = (info.features.is_reduction(), info.is_persistent_reduction)
    if not known or len(info.tiling) != 2 or alike != (reduces, reduces):
        return math.inf
    return int(info.numel) * int(info.rnumel)


def _rows_and_warps(longest: int) -> tuple[int, int]:
    rows = max(1, min(_MOST_ROWS, _OF_A_BLOCK // longest))
    return rows, max(1, min(_MOST_WARPS, rows * longest // _OF_A_WARP))


def config_of(kernel: Any) -> Any:
    """Return the configuration of a combo kernel of elementwise kernels and reductions; None for others.

    Inductor's are of a thousand elements a block: as many rows of a reduction, which no thread has registers for.

    Args:
        kernel: Inductor's ``CachingAutotuner``.
    """
    configs = list(kernel.configs or ())
    if not configs or set(configs[0].kwargs) != {"XBLOCK"}:
        return None
    # Only for combo kernels of nothing but reductions Inductor's size hints have their length.
    combined = "combo_grid_meta" in kernel.inductor_meta
    if not combined or not set(kernel.size_hints or {}) <= {"x"}:
        return None
    rows = [int(length) for length in _ROWS.findall(kernel.fn.src)]
    if not rows:
        return None
    from triton import Config

    block, warps = _rows_and_warps(max(rows))
    return Config({"XBLOCK": block}, num_warps=warps, num_stages=1)
