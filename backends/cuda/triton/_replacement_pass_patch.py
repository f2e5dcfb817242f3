"""Amends ``replacement_pass``: an operator becomes a Triton kernel only if the kernel takes it.

The kernels check what they are given, while they are traced: attention takes bfloat16 alone, a mask
of booleans for all heads, and more. Whatever they refuse stays what it was, which AOTInductor decomposes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from types import ModuleType
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import Node, map_arg
from torch.utils import _pytree as pytree

logger = logging.getLogger(__name__)

#: What the kernel that finds the largest elements can tell apart: it computes in float32.
_TOLD_APART = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.int8,
    torch.uint8,
}

#: Rows and columns that a product in a Triton kernel has at least; heads of fewer don't compile.
_LEAST_HEAD = 16


def apply(module: ModuleType) -> None:
    """Have ``ReplaceEdgeOpWithTritonOpPass`` try a kernel's own checks before it replaces a node."""
    replacing: Any = module.ReplaceEdgeOpWithTritonOpPass
    should_replace = replacing._should_replace_node
    attention = module.exir_ops.edge.aten.scaled_dot_product_attention.default

    @functools.wraps(should_replace)
    def should_replace_node(self: Any, node: Node) -> bool:
        if not should_replace(self, node):
            return False
        if node.target is attention:
            head = _value(node.args[0]).shape[-1]
            return head >= _LEAST_HEAD and _takes(self._pick_sdpa_kernel(node), node)
        kernel = module.EDGE_TO_TRITON_KERNELS[node.target]
        return _value(node.args[0]).dtype in _TOLD_APART and _takes(kernel, node)

    replacing._should_replace_node = should_replace_node


def _takes(kernel: Any, node: Node) -> bool:
    """Whether what launches ``kernel``, run on the node's fake values, raises nothing."""
    args, kwargs = map_arg((node.args, node.kwargs), _value)
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    try:
        with mode or contextlib.nullcontext():
            dispatch_functionalize(kernel)(*args, **kwargs)
    except Exception as error:  # whatever a kernel's author took for the right one
        logger.info("%s stays as it is: %s: %s", node, type(error).__name__, error)
        return False
    return True


def _value(node: Any) -> Any:
    return node.meta["val"]
