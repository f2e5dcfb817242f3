"""Amends ``executorch.exir.memory_planning``: tensors on a device begin where its delegates want them to.

An amendment of this distribution's, not a file to merge: upstream would align where it calls the
planning algorithm for a device.
"""

from __future__ import annotations

import math
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the planning of a graph's tensors, device by device."""
    module.apply_algo = wrapped(module.apply_algo, _apply_algo)  # type: ignore[attr-defined]


def _apply_algo(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.passes._device_nodes import DEVICE_ALIGNMENT
    from executorch.exir.schema import DeviceType

    call = signature(function).bind(*args, **kwargs)
    algorithm = call.arguments["algo"]

    def aligned(alignment: int, specs: Any, *rest: Any) -> Any:
        specs = list(specs)
        if specs and all(each.device != DeviceType.CPU for each in specs):
            alignment = math.lcm(alignment, DEVICE_ALIGNMENT)
        return algorithm(alignment, specs, *rest)

    if call.arguments.get("enable_non_cpu_memory_planning"):
        call.arguments["algo"] = aligned
    return function(*call.args, **call.kwargs)
