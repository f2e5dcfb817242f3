"""Keep the state of ``MutableTorchTensorRTModule`` across engine rebuilds.

It compiles again for inputs of another shape, and for other weights. Users read and write the wrapped
model, so that one owns the buffers: compiled modules write to the model's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule
from torch_tensorrt.dynamo.state.mutations import buffers_written_back


def share_state(module: Any) -> None:
    """Make the buffers that the compiled module writes the model's, with the model's values."""
    model = module.original_model
    for path in _written(module):
        buffer, owned = module.gm.get_buffer(path), model.get_buffer(path)
        if owned is not buffer:
            with torch.no_grad():
                buffer.copy_(owned)
            owner, _, name = path.rpartition(".")
            model.get_submodule(owner)._buffers[name] = buffer


def copied_state(module: Any) -> dict[str, torch.Tensor]:
    """Return copies of the buffers that the model writes, by path, before a trial run."""
    model = module.original_model
    return {path: model.get_buffer(path).clone() for path in _written(module)}


def restore_state(module: Any, state: dict[str, torch.Tensor]) -> None:
    """Restore the state that :func:`copied_state` copied."""
    with torch.no_grad():
        for path, value in state.items():
            module.original_model.get_buffer(path).copy_(value)
    share_state(module)


def _written(module: Any) -> list[str]:
    compiled = module.gm
    return buffers_written_back(compiled) if isinstance(compiled, GraphModule) else []
