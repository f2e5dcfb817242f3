"""Correct fake tensors where ExecuTorch's kernels return another layout than PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def with_row_major_nonzero(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pass's execution so that the fake result of ``nonzero`` is row-major, as ExecuTorch's kernel writes it.

    PyTorch's is column-major, which other kernels reject or read as row-major.
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
