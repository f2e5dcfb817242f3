"""Amends ``executorch.exir.program._program``: the device pass gets all of its configuration.

Upstream hands on those fields of ``PropagateDeviceConfig`` that it knows (pytorch/executorch#18078).
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Hand ``PropagateDeviceConfig.shared_stream`` on to the pass; say what will not run."""
    module.edge_to_executorch_passes = wrapped(  # type: ignore[attr-defined]
        module.edge_to_executorch_passes, _configure
    )


def _configure(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    passes = function(*args, **kwargs)
    given = signature(function).bind(*args, **kwargs).arguments
    config, name = given["config"], given.get("name")

    def of_method(field: str) -> Any:
        value = getattr(config, field, None)  # 1.3 has no propagate_device_config
        return value.get(name) if isinstance(value, dict) else value

    devices = of_method("propagate_device_config")
    for each in passes:
        if isinstance(each, PropagateDevicePass):
            each.set_shared_stream(getattr(devices, "shared_stream", False))
    if getattr(devices, "skip_h2d_for_method_inputs", False) and getattr(
        of_method("memory_planning_pass"), "alloc_graph_input", False
    ):
        warn(
            f"method {name or 'forward'} has skip_h2d_for_method_inputs, and its inputs are "
            "planned: ExecuTorch's C++ runtime would copy the caller's device tensors as if they "
            "were the host's, and crash; give ExecutorchBackendConfig a "
            "MemoryPlanningPass(alloc_graph_input=False)"
        )
    return passes
