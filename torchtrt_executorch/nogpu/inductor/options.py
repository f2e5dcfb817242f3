"""Inductor options for compiling without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.fx import GraphModule

_OPTIONS: dict[str, Any] = {
    # Decisions by timing kernels.
    "benchmark_epilogue_fusion": False,
    "benchmark_fusion": False,
    "loop_ordering_after_fusion": False,
    "prologue_fusion": False,  # slower more often than not, and a constant can't be fused at all
    "shape_padding": False,
    # Code of a template that was rendered for another GPU, or another precision.
    "enable_caching_generated_triton_templates": False,
    "triton.autotune_at_compile_time": True,
    "triton.autotune_pointwise": False,
    # Work in other threads and processes, where the GPU description isn't in force.
    "autotune_in_subproc": False,
    "compile_threads": 1,
    # The processor that runs it is another.
    "cpp.march": "",
    # They would name this machine's files, in which nothing else differs from another's.
    "aot_inductor.enable_line_tables": False,
    # Machine code for the described GPU.
    "aot_inductor.emit_multi_arch_kernel": False,
}


#: Options for a decode step. Its small kernels each take about as long as a launch; independent ones become one: those
#: of a layer's query and key, and all layers' counters. On an H100 Qwen3 0.6B in bfloat16 takes 914 us for 986.
_DECODE_OPTIONS = {
    "combo_kernels": True,
    # It would leave most apart for the sake of some KB: what a token takes is little.
    "combo_kernel_peak_memory_pct_threshold": None,
}
#: Operators of a single token.
_OF_ONE_TOKEN = {
    "executorch_cuda.sdpa_decode.default",
    "executorch_cuda_quantized.gemv.default",
}


#: Options for cross-compilation.
_CROSS_OPTIONS = {
    "aot_inductor.cross_target_platform": None,  # the compiler itself knows what it's for
    "aot_inductor.precompile_headers": False,
}


def overrides(compiler: Path | None = None) -> dict[str, Callable[..., Any]]:
    """Return the override that compiles with these options, in preference to the caller's.

    Args:
        compiler: Of C++ for another operating system or processor, if it is for one.
    """
    from executorch.backends.cuda._concatenations import extend_earlier
    from torch._inductor import aot_compile, config
    from torch._inductor.cpu_vec_isa import invalid_vec_isa

    known = config.get_config_copy()
    options_for_all = dict(_OPTIONS)
    if compiler is not None:
        options_for_all |= {**_CROSS_OPTIONS, "cpp.cxx": (str(compiler),)}
    ours = {name: value for name, value in options_for_all.items() if name in known}

    def compile_with_options(
        module: GraphModule,
        *args: Any,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        wanted = {**(options or {}), **ours}
        if config.post_grad_custom_pre_pass is None:
            wanted.setdefault("post_grad_custom_pre_pass", extend_earlier)
        if is_decode_step(module):
            wanted |= {n: v for n, v in _DECODE_OPTIONS.items() if n in known}
        if wanted.pop("max_autotune", False):
            # Templates to choose from for matmuls and convolutions; for all other kernels the
            # configuration that Inductor takes where it doesn't measure.
            wanted["max_autotune_gemm"] = True
        return aot_compile(module, *args, options=wanted, **kwargs)

    return {
        "torch._inductor:aot_compile": compile_with_options,
        # Nor has it this one's vectors.
        "torch._inductor.cpu_vec_isa:pick_vec_isa": lambda: invalid_vec_isa,
    }


def is_decode_step(module: GraphModule) -> bool:
    """Whether a program computes a single token, by the operators that are for one."""
    return any(str(node.target) in _OF_ONE_TOKEN for node in module.graph.nodes)
