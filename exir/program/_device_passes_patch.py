"""Amends ``executorch.exir.program._program``: says which device inputs would not run.

Upstream: pytorch/executorch#21577.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.passes import MethodConfig, amend_passes


def apply(module: ModuleType) -> None:
    """Look at a method's configuration where its passes are made of it."""
    amend_passes(module, _warn_of_planned_inputs)


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
