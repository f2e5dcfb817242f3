"""Amends ``torch_tensorrt._compile``: ``target_executorch`` for ``compile`` and its neighbours.

Upstream's compile functions hand their ``**kwargs`` on after they have traced the model. A wrong
value has to be an error before that, and one that can't be honoured must not be ignored.

Upstream: pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType

from torch_tensorrt.dynamo._executorch_target import (
    DOC,
    forward,
    refuse,
)

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Wrap the functions that compile."""
    cross = module.cross_compile_for_windows
    vars(module).update(
        compile=wrapped(module.compile, forward, doc=DOC),
        cross_compile_for_windows=wrapped(
            cross, forward, like=undecorated(cross), doc=DOC
        ),
        convert_method_to_trt_engine=wrapped(
            module.convert_method_to_trt_engine, refuse
        ),
    )
