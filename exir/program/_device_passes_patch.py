"""Amends ``executorch.exir.program._program``: says which device inputs would not run.

Upstream: pytorch/executorch#21577.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the list of passes, which is made of a method's configuration."""
    module.edge_to_executorch_passes = wrapped(  # type: ignore[attr-defined]
        module.edge_to_executorch_passes, _warn_of_planned_inputs
    )


def _warn_of_planned_inputs(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    method = MethodConfig.of(function, args, kwargs)
    if getattr(method.devices, "skip_h2d_for_method_inputs", False) and getattr(
        method.planning, "alloc_graph_input", False
    ):
        warn(
            f"method {method.name} has skip_h2d_for_method_inputs, and its inputs are "
            "planned: ExecuTorch's C++ runtime would copy the caller's device tensors as if they "
            "were the host's, and crash; give ExecutorchBackendConfig a "
            "MemoryPlanningPass(alloc_graph_input=False)"
        )
    return function(*args, **kwargs)


@dataclass(frozen=True)
class MethodConfig:
    """What ``ExecutorchBackendConfig`` says of one method.

    Attributes:
        name: The method's.
        devices: Its ``propagate_device_config``; None on ExecuTorch 1.3, which has none.
        planning: Its ``memory_planning_pass``.
    """

    name: str
    devices: Any
    planning: Any

    @classmethod
    def of(
        cls,
        edge_to_executorch_passes: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> MethodConfig:
        """The configuration that a call of ``edge_to_executorch_passes`` is given."""
        given = signature(edge_to_executorch_passes).bind(*args, **kwargs).arguments
        config, name = given["config"], given.get("name")

        def of_method(field: str) -> Any:
            value = getattr(config, field, None)
            return value.get(name) if isinstance(value, dict) else value

        devices = of_method("propagate_device_config")
        return cls(name or "forward", devices, of_method("memory_planning_pass"))
