"""Cache the analysis of which arguments a Triton kernel reads and writes, for equal calls.

Inductor compiles a kernel to Triton's IR and reads that, twice for each call while it traces and once while it
lowers. The layers of a model call the same kernels with tensors of the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from torchtrt_executorch.nogpu.thread_scope import lookup

PATCH_POINT = "torch._higher_order_ops.triton_kernel_wrap:identify_accessed_tensors"
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_LITERALS = (bool, int, float, str, type(None), torch.dtype)


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override that caches the analyses of a compilation."""
    analyze = lookup(PATCH_POINT)
    if analyze is None:
        return {}
    known: dict[Hashable, Any] = {}

    def analyze_once(
        kernel: Any, kwargs: dict[str, Any], descriptors: Mapping[str, Any]
    ) -> Any:
        key = None if descriptors else _key(kernel, kwargs)
        if key is None:
            return analyze(kernel, kwargs, descriptors)
        if key not in known:
            known[key] = analyze(kernel, kwargs, descriptors)
        return known[key]

    return {PATCH_POINT: analyze_once}


def _key(kernel: Any, kwargs: Mapping[str, Any]) -> Hashable | None:
    """Return what the analysis goes by: it gives each tensor two elements, and each symbol the value 2.

    Returns:
        None if an argument is of another kind.
    """
    from triton.runtime.autotuner import Autotuner

    if isinstance(kernel, Autotuner):  # a new one for each call that is traced
        if kernel.configs:
            kwargs = {**kwargs, **kernel.configs[0].kwargs}
        kernel = kernel.fn
    described = {name: _describe(value) for name, value in kwargs.items()}
    if None in described.values():
        return None
    return kernel, tuple(sorted(described.items(), key=lambda item: item[0]))


def _describe(value: Any) -> tuple[Hashable, ...] | None:
    import sympy
    from torch._inductor.ir import TensorBox

    if isinstance(value, TensorBox):
        return "tensor", value.get_dtype()
    if isinstance(value, torch.Tensor):
        return "tensor", value.dtype
    if isinstance(value, (*_SYMBOLS, sympy.Expr)):
        return ("symbol",)
    kind: Any = type(value)
    return (kind, value) if kind in _LITERALS else None
