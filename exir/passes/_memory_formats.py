"""Dim orders that have a memory format in ExecuTorch, and empty tensors of dynamic sizes."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir.dialects._ops import ops as exir_ops

_CHANNELS_LAST = (0, 2, 3, 1)


def has_memory_format(value: Any) -> bool:
    """Whether a tensor, or a pass's ``ProxyValue`` of one, is contiguous or channels-last; anything else counts as it."""
    tensor = getattr(value, "data", None)
    return not isinstance(tensor, torch.Tensor) or tensor.dim_order() in (
        (*range(tensor.dim()),),
        _CHANNELS_LAST,
    )


def with_symbolic_sizes(
    operator: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Any, Any, dict[str, Any]]:
    """Return what to call for an operator with sizes: ``full`` for an ``empty`` of dynamic sizes.

    ``_empty_dim_order`` takes ``int[]``, and a symbol that is handed to it is fixed to the example's size, that of the
    input too.
    """
    empty = operator is exir_ops.edge.aten.empty.memory_format
    if not empty or all(isinstance(size, int) for size in args[0]):
        return operator, args, kwargs
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    rest = {name: kwargs[name] for name in kwargs if name != "memory_format"}
    return exir_ops.edge.aten.full.default, (args[0], 0), {**rest, "dtype": dtype}
