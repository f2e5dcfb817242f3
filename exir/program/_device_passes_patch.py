"""Amends ``executorch.exir.program._program``: views are normalized before they are placed.

And says which device inputs would not run (pytorch/executorch#21577).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.passes import MethodConfig, amend_passes


def apply(module: ModuleType) -> None:
    """Look at a method's configuration where its passes are made of it."""
    amend_passes(module, _normalize_views)
    amend_passes(module, _warn_of_planned_inputs)


def _normalize_views(passes: list[Any], method: MethodConfig) -> list[Any]:
    """Have the device passes see each view taken from what it will show, as ExecuTorch does later."""
    # Here, since importing them at the top would import this module's own upstream half-way.
    from executorch.exir.passes.normalize_view_copy_base_pass import (
        NormalizeViewCopyBasePass,
    )
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    found: list[Any] = []
    for each in passes:
        if isinstance(each, PropagateDevicePass):
            found += filter(lambda p: isinstance(p, NormalizeViewCopyBasePass), passes)
        found.append(each)
    return found


def _warn_of_planned_inputs(passes: list[Any], method: MethodConfig) -> list[Any]:
    if getattr(method.devices, "skip_h2d_for_method_inputs", False) and getattr(
        method.planning, "alloc_graph_input", False
    ):
        warn(
            f"method {method.name} has skip_h2d_for_method_inputs, and its inputs are "
            "planned: ExecuTorch's C++ runtime would copy the caller's device tensors as if they "
            "were the host's, and crash; give ExecutorchBackendConfig a "
            "MemoryPlanningPass(alloc_graph_input=False)"
        )
    return passes
