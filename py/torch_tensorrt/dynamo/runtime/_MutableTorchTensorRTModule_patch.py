"""Amends ``MutableTorchTensorRTModule``: its constructor takes ``target_executorch``.

Upstream hands keyword arguments that it doesn't know to ``compile`` when the module first runs; a
wrong value has to be an error before that.

Upstream: ``torch_tensorrt.dynamo.runtime._MutableTorchTensorRTModule``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType

from torch_tensorrt.dynamo._executorch_target import DOC, forward

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the constructor."""
    mutable = module.MutableTorchTensorRTModule
    mutable.__init__ = wrapped(mutable.__init__, forward, doc=DOC)
