"""Lets ``torch_tensorrt.compile`` and its neighbours take ``target_executorch``.

They hand their ``**kwargs`` on after they have traced the model. A wrong value has to be an
error before that, and one that can't be honoured must not be ignored.

Upstream: ``torch_tensorrt._compile``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped
from torchtrt_executorch.patches.torch_tensorrt.dynamo._executorch_target import (
    DOC,
    forward,
    refuse,
)


def apply(module: ModuleType) -> None:
    """Wrap the public functions."""
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
