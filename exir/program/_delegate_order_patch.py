"""Amends ``executorch.exir.program._program``: delegates run in order.

An amendment of this distribution's, not a file to merge: upstream would name the pass in
``edge_to_executorch_passes``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped
from torchtrt_executorch.patches.executorch.exir.program._device_passes_patch import (
    MethodConfig,
)


def apply(module: ModuleType) -> None:
    """Add the pass behind the one that places tensors."""
    module.edge_to_executorch_passes = wrapped(  # type: ignore[attr-defined]
        module.edge_to_executorch_passes, _with_pass
    )


def _with_pass(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.delegate_order_pass import DelegateOrderPass
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    passes = function(*args, **kwargs)
    devices = MethodConfig.of(function, args, kwargs).devices
    for index, each in enumerate(passes):
        if isinstance(each, PropagateDevicePass):
            ordering = DelegateOrderPass(
                each.enable_non_cpu_memory_planning,
                getattr(devices, "shared_stream", False),
            )
            return [*passes[: index + 1], ordering, *passes[index + 1 :]]
    return passes
