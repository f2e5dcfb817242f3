"""Kernels of the installed ExecuTorch runtime."""

from __future__ import annotations

import functools
from typing import Any

import torch
from executorch.exir.operator.convert import to_out_variant


@functools.cache
def host_kernels() -> frozenset[str]:
    """Return the kernels of the installed runtime (``aten::add.out``), none if it can't be asked."""
    try:
        from executorch.runtime import Runtime
    except ImportError:
        return frozenset()
    return frozenset(Runtime.get().operator_registry.operator_names)


def has_kernel(operator: Any) -> bool:
    """Whether the installed runtime has a kernel for an ATen operator."""
    return kernel_of(operator) in host_kernels()


def kernel_of(operator: Any) -> str:
    """Return the name of the kernel that is called for an ATen operator, empty if it has no out variant."""
    if not isinstance(operator, torch._ops.OpOverload):
        return ""
    try:
        schema = to_out_variant(operator)[0]._schema
    except (AssertionError, AttributeError, RuntimeError):
        return ""
    return f"{schema.name}.{schema.overload_name}".rstrip(".")
