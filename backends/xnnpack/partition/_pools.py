"""Write out the default arguments of pools: before ExecuTorch 1.5 XNNPACK reads them by position, for both dimensions."""

from __future__ import annotations

from typing import Any

from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    format_target_name,
)
from torch.fx import Node

#: The schemas' defaults, behind the input and the kernel. A stride of None is the kernel's size.
_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "max_pool2d.default": (None, 0, 1),
    "avg_pool2d.default": (None, 0),
}


def write_out_pool_arguments(node: Node) -> None:
    """Write out a pool's stride, padding and dilation for both dimensions; results are unchanged.

    Args:
        node: A call of an ATen or edge operator. Others than ``max_pool2d`` and ``avg_pool2d`` are left as they are.
    """
    name = format_target_name(getattr(node.target, "__name__", ""))
    if name not in _DEFAULTS:
        return
    read, kernel, *arguments = node.args
    defaults = (kernel, *_DEFAULTS[name][1:])
    count = len(defaults)
    arguments += [None] * (count - len(arguments))
    lists = [
        _pair(value if isinstance(value, int) or value else default)
        for value, default in zip(arguments[:count], defaults, strict=True)
    ]
    node.args = (read, _pair(kernel), *lists, *arguments[count:])


def _pair(value: Any) -> list[Any]:
    per_axis = [value] if isinstance(value, int) else [*value]
    return per_axis * 2 if len(per_axis) == 1 else per_axis
