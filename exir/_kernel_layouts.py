"""Layouts that ExecuTorch's kernels write, where PyTorch's write others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def in_written_order(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Have a pass's execution of ``nonzero`` return what ExecuTorch's kernel writes: row by row.

    PyTorch's returns it column by column, which other kernels refuse, or read in rows.
    """

    @functools.wraps(execute)
    def wrapper(self: Any, kind: str, target: Any, *args: Any) -> Any:
        result = execute(self, kind, target, *args)
        if getattr(target, "_op", target) is torch.ops.aten.nonzero.default:
            value = result.data
            with value.fake_mode:
                result.data = torch.empty(value.shape, dtype=value.dtype)
            self.tracer.set_metadata(result.proxy.node, result.data)
        return result

    return wrapper
