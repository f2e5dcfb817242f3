"""Make expanded constants contiguous: ExecuTorch emits no tensor with a stride of 0."""

from __future__ import annotations

import torch
from torch.fx import Node


def dense_constant(node: Node, constant: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return the constant that stands for ``node``, and for its fake tensor, with no stride of 0."""
    if 0 not in constant.stride():
        return constant
    if isinstance(value := node.meta.get("val"), torch.Tensor):
        node.meta["val"] = _dense(value)
    return torch.nn.Parameter(_dense(constant.data), requires_grad=False)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    # Not contiguous(), which returns a tensor whose strides of 0 are those of dimensions of one.
    return tensor.clone(memory_format=torch.contiguous_format)
