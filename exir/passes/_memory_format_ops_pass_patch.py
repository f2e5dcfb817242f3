"""Amends ``memory_format_ops_pass``: a cast or copy of a value in another layout is contiguous.

Layouts that ExecuTorch has a memory format for are contiguous and channels-last. A cast or copy that
preserves any other, a transposed weight's or input's, has no operator to become, and upstream raises.

Upstream: ``executorch.exir.passes.memory_format_ops_pass``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch


def apply(module: ModuleType) -> None:
    """Wrap what gives an operator the order of its dimensions."""
    replacing, operators = module.MemoryFormatOpsPass, module.DimOrderOpsMap
    call_operator = replacing.call_operator

    @functools.wraps(call_operator)
    def with_known_layout(
        self: Any, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], meta: Any
    ) -> Any:
        if op in operators and _preserves_unknown(args, kwargs):
            kwargs = {**kwargs, "memory_format": torch.contiguous_format}
        return call_operator(self, op, args, kwargs, meta)

    replacing.call_operator = with_known_layout


def _preserves_unknown(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call preserves a layout that is neither contiguous nor channels-last."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return False
    value = getattr(args[0], "data", None)  # a ProxyValue's
    return isinstance(value, torch.Tensor) and value.dim_order() not in (
        (*range(value.dim()),),
        (0, 2, 3, 1),
    )
