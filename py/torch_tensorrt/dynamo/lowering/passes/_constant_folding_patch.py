"""Amends ``constant_folding``: what is kept quantized is no constant, and a constant has no stride of 0.

ExecuTorch emits no tensor that has one, as an index that was expanded ("0 in strides is not supported").

Upstream: ``torch_tensorrt.dynamo.lowering.passes.constant_folding``, which knows modelopt's operators.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch.fx import GraphModule, Node


def apply(module: ModuleType) -> None:
    """Wrap what says which nodes are left alone, and what puts constants in the place of others."""
    # Here, since importing it at the top would import this module's own upstream half-way.
    from torch_tensorrt.dynamo._quantized import is_kept

    folder = module._TorchTensorRTConstantFolder
    is_impure = folder.is_impure

    @functools.wraps(is_impure)
    def is_impure_or_kept(self: Any, node: Node) -> bool:
        return is_kept(node) or is_impure(self, node)

    folder.is_impure = is_impure_or_kept
    replace = module.replace_node_with_constant  # type: ignore[attr-defined]

    @functools.wraps(replace)
    def replace_with_dense(
        gm: GraphModule, node: Node, constant: torch.nn.Parameter
    ) -> None:
        if 0 in constant.stride():
            constant = torch.nn.Parameter(_dense(constant.data), requires_grad=False)
            if isinstance(value := node.meta.get("val"), torch.Tensor):
                node.meta["val"] = _dense(value)
        replace(gm, node, constant)

    module.replace_node_with_constant = replace_with_dense  # type: ignore[attr-defined]


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    # Not contiguous(), which returns a tensor whose strides of 0 are those of dimensions of one.
    return tensor.clone(memory_format=torch.contiguous_format)
