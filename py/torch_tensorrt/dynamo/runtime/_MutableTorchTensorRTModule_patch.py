"""Lets ``MutableTorchTensorRTModule`` take ``target_executorch`` and check it at once.

Upstream hands keyword arguments that it doesn't know to ``compile`` when the module first runs.

Upstream: ``torch_tensorrt.dynamo.runtime._MutableTorchTensorRTModule``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType

from torch_tensorrt.dynamo._executorch_target import (
    DOC,
    forward,
)

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the constructor."""
    mutable = module.MutableTorchTensorRTModule
    mutable.__init__ = wrapped(mutable.__init__, forward, doc=DOC)
