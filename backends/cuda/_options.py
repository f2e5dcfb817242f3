"""Inductor's options for a GPU that isn't there."""

from __future__ import annotations

from typing import Any

from executorch.backends.cuda._gpu_properties import (
    GpuProperties,
)

_OPTIONS = {
    # What is decided by timing kernels.
    "benchmark_epilogue_fusion": False,
    "benchmark_fusion": False,
    "loop_ordering_after_fusion": False,
    "shape_padding": False,
    "triton.autotune_at_compile_time": True,
    "triton.autotune_pointwise": False,
    # What other threads and processes do, which know nothing of the described GPU.
    "autotune_in_subproc": False,
    "compile_threads": 1,
    # The processor that runs it is another.
    "cpp.march": "",
}


def options_for(gpu: GpuProperties) -> dict[str, Any]:
    """Return the options that ``CudaBackend``'s own are to be amended by."""
    from torch._inductor import config

    known = config.get_config_copy()
    options = {**_OPTIONS, "aot_inductor.emit_multi_arch_kernel": False}
    return {name: value for name, value in options.items() if name in known}
