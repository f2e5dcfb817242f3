"""Amends ``constant_folding``: what is kept quantized is no constant.

Upstream: ``torch_tensorrt.dynamo.lowering.passes.constant_folding``, which knows modelopt's operators.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.fx import Node


def apply(module: ModuleType) -> None:
    """Wrap what says which nodes are left alone."""
    # Here, since importing it at the top would import this module's own upstream half-way.
    from torch_tensorrt.dynamo._quantized import is_kept

    folder = module._TorchTensorRTConstantFolder
    is_impure = folder.is_impure

    @functools.wraps(is_impure)
    def is_impure_or_kept(self: Any, node: Node) -> bool:
        return is_kept(node) or is_impure(self, node)

    folder.is_impure = is_impure_or_kept
