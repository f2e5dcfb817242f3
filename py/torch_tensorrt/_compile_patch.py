"""``target_executorch`` for ``torch_tensorrt.compile`` and its neighbours; ``save`` for ExecuTorch.

Upstream's compile functions hand their ``**kwargs`` on after they have traced the model. A wrong
value has to be an error before that, and one that can't be honoured must not be ignored.

Upstream: ``torch_tensorrt._compile``, pytorch/TensorRT#4355, #4574.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped
from torchtrt_executorch.patches.torch_tensorrt._save import save_executorch
from torchtrt_executorch.patches.torch_tensorrt.dynamo._executorch_target import (
    DOC,
    forward,
    refuse,
)

#: Options of upstream's ``save`` for other formats, which mean nothing to ExecuTorch.
_OTHER_FORMATS = ("extra_files", "pickle_protocol", "use_legacy_exporter")


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


def apply_to_save(module: ModuleType) -> None:
    """Wrap ``save``, and let ``torch_tensorrt.executorch`` be reached without an import."""
    vars(module).update(save=wrapped(module.save, _save))
    vars(sys.modules["torch_tensorrt"]).setdefault("__getattr__", _subpackage)


def _save(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if kwargs.get("output_format") != "executorch":
        return function(*args, **kwargs)
    options = {
        name: value
        for name, value in kwargs.items()
        if name not in ("output_format", *_OTHER_FORMATS)
    }
    return save_executorch(*args, **options)


def _subpackage(name: str) -> Any:
    if name == "executorch":
        return import_module("torch_tensorrt.executorch")
    raise AttributeError(f"module 'torch_tensorrt' has no attribute {name!r}")
