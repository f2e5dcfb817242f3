"""Amends ``executorch.exir.passes.memory_planning_pass``: says why methods can't share state on a device."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the planning of one method."""
    planning = module.MemoryPlanningPass
    planning.run = wrapped(planning.run, _run)


def _run(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes._device_nodes import HOST, tensor_specs

    planning, graph_module = args[0], [*args[1:], *kwargs.values()][0]
    shares = planning.share_mutable_buffers and getattr(
        planning, "enable_non_cpu_memory_planning", False
    )
    if shares and any(
        (spec.device, spec.device_index) != HOST
        for node in graph_module.graph.nodes
        for spec in tensor_specs(node)
    ):
        raise ValueError(
            "share_mutable_buffers=True, and a method has tensors on a device: ExecuTorch's runtime "
            "shares no memory between methods then; make one method of them, with dynamic shapes "
            "(prefill and decode over one cache), or give ExecutorchBackendConfig "
            "enable_non_cpu_memory_planning=False"
        )
    return function(*args, **kwargs)
