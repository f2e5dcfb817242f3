"""Amends ``_ConverterRegistry``: no converter that needs an output allocator, or that an engine lacks.

That is so under ``target_executorch``. Under any setting a validator that fails refuses its node.

The partitioners, the count of supported operators, the interpreter and a refit all ask the
registry for a node's converter, so this one place decides for all of them.

Upstream: ``torch_tensorrt.dynamo.conversion._ConverterRegistry``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH


def apply(module: ModuleType) -> None:
    """Let ``ConverterRegistry[node]`` raise KeyError for a node that is to run in PyTorch."""
    from torch_tensorrt.dynamo.conversion._selection import selected as selected_by

    registry = module.ConverterRegistry
    select = registry.__getitem__

    @functools.wraps(select)
    def __getitem__(self: Any, node: Any) -> Any:
        selected = selected_by(select, self, node)
        settings = self.compilation_settings
        if settings is None or not settings.target_executorch:
            return selected
        if IN_PYTORCH in node.meta:
            raise KeyError(
                f"target_executorch=True, and no converter takes {node} in its engine"
            )
        if selected[2]["requires_output_allocator"]:
            raise KeyError(
                f"target_executorch=True, and the converter selected for {node} needs an output "
                "allocator"
            )
        return selected

    registry.__getitem__ = __getitem__
