"""Amends ``_exporter``: what a compiled module runs in PyTorch is inlined by position.

Upstream: ``torch_tensorrt.dynamo._exporter``; ``torch_tensorrt.dynamo.export`` and ``save`` go
through it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torch.fx import GraphModule
from torch_tensorrt.dynamo._inlining import with_torch_parts_inlined

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap ``transform``: upstream finds nothing left to inline but engines."""
    vars(module).update(transform=wrapped(module.transform, _inlined))


def _inlined(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> GraphModule:
    gm = args[0] if args else kwargs.pop("gm")
    inlined = with_torch_parts_inlined(gm)
    result = function(inlined, *args[1:], **kwargs)
    return result.finished() if result is inlined else result
