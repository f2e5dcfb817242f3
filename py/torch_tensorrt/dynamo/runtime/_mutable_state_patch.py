"""Amends ``MutableTorchTensorRTModule``: state outlives an engine.

It compiles anew for inputs of another shape, and for other weights. The model that it wraps is what
users read and write, so that owns the buffers: what is compiled writes to the model's own.

Upstream: ``torch_tensorrt.dynamo.runtime._MutableTorchTensorRTModule``, pytorch/TensorRT#4251.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

import torch
from torch.fx import GraphModule
from torch_tensorrt.dynamo._writes import buffers_written_back

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap what makes another compiled module, and what runs the model to see whether to."""
    mutable = module.MutableTorchTensorRTModule
    mutable.compile = wrapped(mutable.compile, _sharing)
    mutable.refit_gm = wrapped(mutable.refit_gm, _sharing)
    mutable.update_refit_condition = wrapped(mutable.update_refit_condition, _trying)


def _sharing(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    function(*args, **kwargs)
    _share(args[0])


def _trying(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Run the model on the last inputs, as upstream does, and forget what it wrote for that."""
    model, paths = args[0].original_model, _written(args[0])
    before = {path: model.get_buffer(path).clone() for path in paths}
    function(*args, **kwargs)
    with torch.no_grad():
        for path, value in before.items():
            model.get_buffer(path).copy_(value)
    _share(args[0])


def _share(module: Any) -> None:
    """Make the buffers that the compiled module writes the model's, with the model's values."""
    model = module.original_model
    for path in _written(module):
        held, owned = module.gm.get_buffer(path), model.get_buffer(path)
        if owned is not held:
            with torch.no_grad():
                held.copy_(owned)
            owner, _, name = path.rpartition(".")
            model.get_submodule(owner)._buffers[name] = held


def _written(module: Any) -> list[str]:
    compiled = module.gm
    return buffers_written_back(compiled) if isinstance(compiled, GraphModule) else []
