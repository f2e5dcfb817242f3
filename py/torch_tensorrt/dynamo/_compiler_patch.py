"""Amends ``_compiler``: operators that need an output allocator run in PyTorch, for ExecuTorch.

Upstream: ``torch_tensorrt.dynamo._compiler``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torch_tensorrt.dynamo import _allocator_routing
from torch_tensorrt.dynamo._constant_outputs import compile_with_constants
from torch_tensorrt.dynamo._executorch_target import (
    DOC,
    check,
    refuse,
    request,
)
from torch_tensorrt.dynamo.conversion._refusals import convert_named

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Add the two helpers, and wrap the entry points, ``compile_module`` and the conversion."""
    cross = module.cross_compile_for_windows
    single = module.convert_exported_program_to_serialized_trt_engine
    vars(module).update(
        _output_allocator_ops=_allocator_routing._output_allocator_ops,
        _route_output_allocator_ops=_allocator_routing._route_output_allocator_ops,
        compile=wrapped(module.compile, _for_executorch, doc=DOC),
        cross_compile_for_windows=wrapped(
            cross, _for_executorch, like=undecorated(cross), doc=DOC
        ),
        convert_exported_program_to_serialized_trt_engine=wrapped(single, refuse),
        compile_module=wrapped(
            wrapped(module.compile_module, compile_with_constants),
            _allocator_routing.compile_routed,
        ),
        convert_module=wrapped(
            wrapped(module.convert_module, convert_named),
            _allocator_routing.convert_guarded,
        ),
    )


def _for_executorch(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    target_executorch: bool = False,
    executorch_allocator_routing: str = "target",
) -> Any:
    check(
        target_executorch,
        executorch_allocator_routing,
        kwargs.get("require_full_compilation"),
    )
    with request(
        target_executorch=target_executorch,
        executorch_allocator_routing=executorch_allocator_routing,
    ):
        return function(*args, **kwargs)
