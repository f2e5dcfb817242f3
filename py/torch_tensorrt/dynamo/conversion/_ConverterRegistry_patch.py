"""Amends ``_ConverterRegistry``: no converter for what its engine can't have, under ``target_executorch``.

Under any setting a validator that fails refuses its node.

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
        return selected

    registry.__getitem__ = __getitem__
