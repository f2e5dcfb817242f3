"""Amends ``_ConverterRegistry`` and ``_compiler``: routes by node, ``executorch_allocator_routing="node"``.

The partitioners, the count of supported operators, the interpreter and a refit all ask the
registry for a node's converter, so this one place decides for all of them.

Upstream: ``torch_tensorrt.dynamo.conversion._ConverterRegistry``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any, Callable

from torch_tensorrt.dynamo._executorch_target import ROUTINGS

from torchtrt_executorch.overlay.wrapping import wrapped


def apply_to_registry(module: ModuleType) -> None:
    """Let ``ConverterRegistry[node]`` raise KeyError for a node whose converter needs an allocator."""
    registry = module.ConverterRegistry
    select = registry.__getitem__

    @functools.wraps(select)
    def __getitem__(self: Any, node: Any) -> Any:
        selected = select(self, node)
        settings = self.compilation_settings
        executorch = settings is not None and settings.target_executorch
        if executorch and selected[2]["requires_output_allocator"]:
            raise KeyError(
                f"target_executorch=True, and the converter selected for {node} needs an output "
                "allocator"
            )
        return selected

    registry.__getitem__ = __getitem__
    if "node" not in ROUTINGS:
        ROUTINGS.append("node")


def apply(module: ModuleType) -> None:
    """Wrap ``compile_module``, to say which nodes are routed."""
    vars(module).update(compile_module=wrapped(module.compile_module, _said))


def _said(
    compile_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from torch_tensorrt.dynamo._allocator_routing import say_nodes

    call = inspect.signature(compile_module).bind(*args, **kwargs)
    settings = call.arguments.get("settings")
    if settings is not None and settings.executorch_allocator_routing == "node":
        say_nodes(call.arguments["gm"], settings)
    return compile_module(*args, **kwargs)
