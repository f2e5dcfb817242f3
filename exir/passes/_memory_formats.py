"""Dim orders that have a memory format in ExecuTorch."""

from __future__ import annotations

from typing import Any

import torch

_CHANNELS_LAST = (0, 2, 3, 1)


def has_memory_format(value: Any) -> bool:
    """Whether a tensor, or a pass's ``ProxyValue`` of one, is contiguous or channels-last; anything else counts as it."""
    tensor = getattr(value, "data", None)
    return not isinstance(tensor, torch.Tensor) or tensor.dim_order() in (
        (*range(tensor.dim()),),
        _CHANNELS_LAST,
    )
